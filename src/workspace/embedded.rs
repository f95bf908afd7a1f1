//! The copies inside the binary: operations, starter kernels and the program page of the repository it was built from.

/// Names relative to a workspace's root (forward slashes, sorted) and texts; `build.rs` writes the list.
static FILES: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// The folder of the headers that CUDA kernels may include. They are the program's own: no workspace has them, and none is asked.
pub const HEADERS: &str = "kernels/cuda/include/";

/// The copy of `name`, as in `kernels/cpu/rmsnorm.c`.
#[must_use]
pub fn embedded(name: &str) -> Option<&'static str> {
    FILES.binary_search_by_key(&name, |(name, _)| name).ok().map(|at| FILES[at].1)
}

/// The names of all copies that start with `prefix`, sorted.
pub fn embedded_names(prefix: &str) -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name).filter(move |name| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_is_found_and_nothing_else_is() {
        for (name, text) in FILES {
            assert_eq!(embedded(name), Some(*text));
        }
        assert_eq!(embedded("kernels/cpu/no_such_operation.c"), None);
        assert_eq!(embedded_names("").count(), FILES.len());
        assert!(FILES.is_sorted_by(|a, b| a.0 < b.0));
    }
}
