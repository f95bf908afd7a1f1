//! What the second tier asks about.

use crate::defence::Defence;

/// What a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Topic {
    /// Hostile inputs at the timed sizes.
    TimedSizes,
    /// The same with some sizes larger than timed.
    LongerSizes,
    /// The same at sizes of the sweep.
    SweepSizes,
    /// Other values of the floating-point arguments.
    Arguments,
    /// Buffers that end where memory ends.
    Fences,
    /// Other numbers of threads.
    Threads,
    /// The same input again and again, with rubbish between launches.
    Repeats,
    /// Launches that follow each other as those of a timed sample do, ordinary and hostile ones.
    InARow,
    /// Shapes drawn as the last one of the stages is, with ordinary and hostile inputs.
    DrawnShapes,
    /// Small shapes of which a size is an odd multiple of 128 or 256.
    RoundSizes,
    /// Each size for itself one that is timed, one that is listed, or any.
    AnySizes,
    /// Hostile inputs on every way that the kernel takes at listed shapes.
    EachWay,
    /// Launches of more blocks than 16 bits count.
    ManyBlocks,
    /// One size far beyond all that the operation lists.
    FarSizes,
    /// Tensors of more than 2^31 elements.
    HugeTensors,
}

impl Topic {
    /// In words, for whoever reads what was asked.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::TimedSizes => "hostile inputs at the timed sizes",
            Self::LongerSizes => "hostile inputs at larger sizes",
            Self::SweepSizes => "hostile inputs at the sweep's sizes",
            Self::Arguments => "other arguments",
            Self::Fences => "buffers that end where memory ends",
            Self::Threads => "other numbers of threads",
            Self::Repeats => "the same input many times",
            Self::InARow => "launches in a row",
            Self::DrawnShapes => "drawn shapes",
            Self::RoundSizes => "round sizes",
            Self::AnySizes => "sizes of any mixture",
            Self::EachWay => "hostile inputs on every way through the kernel",
            Self::ManyBlocks => "more blocks than 16 bits count",
            Self::FarSizes => "sizes far beyond the listed ones",
            Self::HugeTensors => "tensors beyond 2^31 elements",
        }
    }

    /// Its questions that are asked before the next topic's: small cases are soon answered, and one alone seldom meets anything.
    pub(super) const fn at_once(self) -> usize {
        match self {
            Self::RoundSizes | Self::AnySizes | Self::EachWay => 6,
            Self::InARow | Self::FarSizes => 2,
            _ => 1,
        }
    }

    /// Whether its cases are small, and each unlike the others.
    pub(super) const fn is_soon_answered(self) -> bool {
        matches!(self, Self::AnySizes | Self::DrawnShapes)
    }

    /// Its share of the time that questions take, at the most: those for which more would leave none for others.
    pub(super) fn share(self) -> f64 {
        if matches!(self, Self::FarSizes | Self::EachWay | Self::ManyBlocks) { 0.25 } else { 1.0 }
    }

    /// What it keeps out is kept out by this.
    pub(super) const fn defence(self) -> Defence {
        match self {
            Self::TimedSizes => Defence::TimedSizes,
            Self::LongerSizes => Defence::LongerSizes,
            Self::SweepSizes => Defence::SweepSizes,
            Self::Arguments => Defence::OtherArguments,
            Self::Fences => Defence::Fences,
            Self::Threads => Defence::Threads,
            Self::Repeats => Defence::Repeats,
            Self::InARow => Defence::InARow,
            Self::DrawnShapes | Self::RoundSizes | Self::AnySizes => Defence::DrawnShapes,
            Self::EachWay => Defence::EachWay,
            Self::ManyBlocks => Defence::ManyBlocks,
            Self::FarSizes => Defence::FarSizes,
            Self::HugeTensors => Defence::HugeTensors,
        }
    }
}
