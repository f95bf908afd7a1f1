//! How buffers lie in a region of the arena, and what of it a child may touch.

use std::sync::LazyLock;

use super::control::Visible;
use crate::backend::{Placing, Span};
use crate::defence::Defence;

/// Bytes of pattern on both sides of every buffer that is not fenced.
pub const RED_ZONE: usize = 256;
/// Alignment of every buffer, bytes.
pub const ALIGNMENT: usize = 64;
/// Bytes behind a fenced buffer that cannot be touched: a whole number of pages on every system.
pub(super) const FENCE: usize = 1 << 16;

/// Bytes of a page.
pub(super) fn page() -> usize {
    static PAGE: LazyLock<usize> = LazyLock::new(|| {
        // SAFETY: asks for a number.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
    });
    *PAGE
}

/// Where the buffers of a region are.
#[derive(Debug)]
pub(super) struct Layout {
    placing: Placing,
    capacity: usize,
    used: usize,
    visible: Visible,
}

impl Layout {
    pub(super) fn new(placing: Placing, capacity: usize) -> Self {
        Self { placing, capacity, used: 0, visible: Visible::default() }
    }

    /// Bytes that a buffer of `bytes` takes; `None` where they are too many to count.
    pub(super) fn footprint(bytes: usize, placing: Placing) -> Option<usize> {
        let aligned = bytes.checked_next_multiple_of(ALIGNMENT)?;
        match placing {
            Placing::Packed => aligned.checked_add(2 * RED_ZONE),
            Placing::Fenced => aligned.checked_add(RED_ZONE)?.checked_next_multiple_of(page())?.checked_add(FENCE),
        }
    }

    /// The offset of a new buffer; `None` where the region is full.
    pub(super) fn place(&mut self, bytes: usize) -> Option<usize> {
        let aligned = bytes.checked_next_multiple_of(ALIGNMENT)?;
        let begin = self.used;
        let end = begin.checked_add(Self::footprint(bytes, self.placing)?).filter(|end| *end <= self.capacity)?;
        self.used = end;
        self.visible.version += 1;
        match self.placing {
            Placing::Packed => {
                let pages = if Defence::BufferPages.stands() { end.next_multiple_of(page()) } else { usize::MAX };
                self.visible.stretches = vec![[0, pages.min(self.capacity)]];
                Some(begin + RED_ZONE)
            }
            Placing::Fenced => {
                self.visible.stretches.push([begin, end - FENCE]);
                Some(end - FENCE - aligned)
            }
        }
    }

    /// Forgets every buffer.
    pub(super) fn reset(&mut self) {
        self.used = 0;
        self.visible = Visible { version: self.visible.version + 1, stretches: Vec::new() };
    }

    pub(super) const fn used(&self) -> usize {
        self.used
    }

    pub(super) const fn visible(&self) -> &Visible {
        &self.visible
    }

    /// What a child may touch although no buffer or red zone is there: the rest of the last page.
    pub(super) fn slack(&self) -> std::ops::Range<usize> {
        match (self.placing, self.visible.stretches.last()) {
            (Placing::Packed, Some([_, end])) => self.used..self.used.next_multiple_of(page()).min(*end),
            _ => 0..0,
        }
    }

    /// The red zones before and after a placed buffer; the one after begins with its very next byte and may be empty where a
    /// fence follows.
    pub(super) fn red_zones(&self, span: &Span) -> [Span; 2] {
        let stretch = |from: usize, to: usize| Span { region: span.region, offset: from, bytes: to - from };
        let end = span.offset + span.bytes;
        let aligned = span.offset + span.bytes.next_multiple_of(ALIGNMENT);
        match self.placing {
            Placing::Packed => [stretch(span.offset - RED_ZONE, span.offset), stretch(end, aligned + RED_ZONE)],
            Placing::Fenced => {
                let begins = |[from, to]: &&[usize; 2]| (*from..*to).contains(&span.offset);
                let begin = self.visible.stretches.iter().find(begins).map_or(span.offset, |[from, _]| *from);
                [stretch(begin, span.offset), stretch(end, aligned)]
            }
        }
    }

    /// How far behind the end of a fenced buffer `offset` is, where that is a fence.
    pub(super) fn beyond(&self, offset: usize) -> Option<usize> {
        let mut ends = self.visible.stretches.iter().rev().map(|[_, end]| *end);
        let distance = offset - ends.find(|end| *end <= offset)?;
        (self.placing == Placing::Fenced && distance < FENCE).then_some(distance)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::backend::Region;

    fn spans(layout: &mut Layout) -> Vec<Span> {
        let place = |bytes| Span { region: Region::Outputs, offset: layout.place(bytes).unwrap(), bytes };
        [1, 63, 64, 65, 1000, 5000].map(place).to_vec()
    }

    #[test]
    fn packed_buffers_follow_each_other_and_their_pages_are_visible() {
        let mut layout = Layout::new(Placing::Packed, 1 << 14);
        let mut end = 0;
        for span in spans(&mut layout) {
            let [before, after] = layout.red_zones(&span);
            assert_eq!((span.offset % ALIGNMENT, before.offset), (0, end));
            assert_eq!((before.offset + before.bytes, after.offset), (span.offset, span.offset + span.bytes));
            assert!(after.bytes >= RED_ZONE);
            end = after.offset + after.bytes;
        }
        assert_eq!(end, layout.used());
        assert_eq!(layout.visible().stretches, [[0, end.next_multiple_of(page())]]);
        assert_eq!(layout.slack(), end..end.next_multiple_of(page()));
        assert_eq!(layout.place(1 << 14), None);
        assert_eq!(layout.place(usize::MAX - 8), None);
    }

    #[test]
    fn fenced_buffers_end_where_nothing_is_visible() {
        let mut layout = Layout::new(Placing::Fenced, 1 << 20);
        for (index, span) in spans(&mut layout).iter().enumerate() {
            let [before, after] = layout.red_zones(span);
            let [begin, end] = layout.visible().stretches[index];
            assert_eq!(span.offset % ALIGNMENT, 0);
            assert_eq!((before.offset, before.offset + before.bytes), (begin, span.offset));
            assert_eq!((after.offset, after.offset + after.bytes), (span.offset + span.bytes, end));
            assert!(before.bytes >= RED_ZONE && after.bytes < ALIGNMENT && end % page() == 0);
            assert_eq!(layout.beyond(end + 5), Some(5));
        }
        let all: usize =
            [1, 63, 64, 65, 1000, 5000].iter().filter_map(|n| Layout::footprint(*n, Placing::Fenced)).sum();
        assert_eq!(all, layout.used());
        let before = layout.visible().version;
        layout.reset();
        assert!(layout.visible().version > before && layout.visible().stretches.is_empty());
    }
}
