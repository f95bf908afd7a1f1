//! What requests in flight together are told, so that they do not all have the same idea.

use crate::rng::Stream;

/// Families of techniques: those of the playbook's tiers, in words that fit any backend.
const FAMILIES: [&str; 8] = [
    "memory access (fewer bytes, wider and better ordered loads and stores)",
    "tiling and reuse (what stays in registers, shared memory or cache, and for how long)",
    "the split of the work over blocks, warps, threads and vector lanes, and its balance at the end",
    "arithmetic (fewer, cheaper or wider instructions, independent accumulators)",
    "latency (prefetching, double buffers, loads that overlap with arithmetic)",
    "the algorithm (fewer passes, another order, recomputing instead of storing)",
    "the shapes that cost most (a variant for them, work hoisted out of the inner loop)",
    "structure (launches and synchronisation, phases fused or split)",
];

/// A family, by its place in the list.
pub type Family = usize;

/// A family for the request `ticket` that no other one in flight has, as long as there are enough. The same seed, ticket
/// and others give the same.
#[must_use]
pub fn draw(seed: u64, ticket: u64, others: &[Family]) -> Family {
    let order = Stream::new(seed, &format!("direction {ticket}")).permutation(FAMILIES.len());
    let times = |family: &Family| others.iter().filter(|other| *other == family).count();
    order.into_iter().min_by_key(times).unwrap_or(0)
}

/// The sentence for a prompt: what to try, and what others are trying at the moment.
#[must_use]
pub fn sentence(family: Family, others: &[Family]) -> String {
    let mut theirs: Vec<&str> = others.iter().filter_map(|other| FAMILIES.get(*other).copied()).collect();
    theirs.sort_unstable();
    theirs.dedup();
    let own = FAMILIES.get(family).copied().unwrap_or(FAMILIES[0]);
    theirs.retain(|their| *their != own);
    let beside = if theirs.is_empty() {
        String::new()
    } else {
        format!("Other proposals for this kernel are being written right now, on {}. ", theirs.join("; "))
    };
    format!(
        "{beside}Look first at {own}. If you are sure that nothing of this kind can help here, propose what you expect \
         most of."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_in_flight_differ(seed: u64, first: u64) {
            let mut others = Vec::new();
            for ticket in 0..FAMILIES.len() as u64 {
                let family = draw(seed, first.wrapping_add(ticket), &others);
                prop_assert!(!others.contains(&family));
                others.push(family);
            }
            prop_assert!(draw(seed, 0, &others) < FAMILIES.len());
        }
    }

    #[test]
    fn the_same_draw_is_the_same_and_tickets_differ() {
        assert_eq!(draw(1, 2, &[3]), draw(1, 2, &[3]));
        let drawn: std::collections::BTreeSet<Family> = (0..40).map(|ticket| draw(1, ticket, &[])).collect();
        assert_eq!(drawn.len(), FAMILIES.len());
    }

    #[test]
    fn the_sentence_names_the_others_and_not_oneself_twice() {
        let said = sentence(0, &[0, 3, 3]);
        assert_eq!(said.matches("arithmetic (").count(), 1, "{said}");
        assert_eq!(said.matches("memory access").count(), 1, "{said}");
        assert!(!sentence(0, &[]).contains("Other proposals"));
    }
}
