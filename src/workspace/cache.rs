//! Where what belongs to the machine rather than to a workspace is kept.

use std::ffi::OsString;
use std::path::PathBuf;

/// The machine's cache: `$WARPSMITH_CACHE`, else `$XDG_CACHE_HOME/warpsmith`, else `~/.cache/warpsmith`;
/// without a home, a folder of this user in the system's temporary folder. It is not made here.
#[must_use]
pub fn cache_dir() -> PathBuf {
    choose(|name| std::env::var_os(name))
        .unwrap_or_else(|| std::env::temp_dir().join(format!("warpsmith-{}", rustix::process::getuid().as_raw())))
}

/// The choice, given the environment. Relative paths count only for our own variable: the XDG specification says that
/// they are to be ignored in its own.
fn choose(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("WARPSMITH_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("warpsmith")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/warpsmith")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(variables: &[(&str, &str)]) -> Option<PathBuf> {
        choose(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let all = [("WARPSMITH_CACHE", "/w"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(chosen(&all), Some(PathBuf::from("/w")));
        assert_eq!(chosen(&all[1..]), Some(PathBuf::from("/x/warpsmith")));
        assert_eq!(chosen(&all[2..]), Some(PathBuf::from("/h/.cache/warpsmith")));
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[("WARPSMITH_CACHE", ""), ("HOME", "/h")]), Some(PathBuf::from("/h/.cache/warpsmith")));
        assert_eq!(chosen(&[("XDG_CACHE_HOME", "rel"), ("HOME", "/h")]), Some(PathBuf::from("/h/.cache/warpsmith")));
    }
}
