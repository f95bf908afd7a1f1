//! Data within a prompt: fenced, so that it cannot pose as instructions.

/// Bytes of a log that are shown: compilers repeat themselves.
const LOG: usize = 6000;

/// Source text, whole, between fences longer than any within it.
pub(super) fn code(text: &str) -> String {
    let fence = "`".repeat(longest_run(text).max(2) + 1);
    let feed = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    format!("{fence}\n{text}{feed}{fence}")
}

/// A log, likewise; of a long one the beginning and the end, which say most. Empty where it says nothing.
pub(super) fn log(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        return String::new();
    }
    if text.len() <= LOG {
        return code(text);
    }
    let head = &text[..text.floor_char_boundary(LOG * 2 / 3)];
    let tail = &text[text.ceil_char_boundary(text.len() - LOG / 3)..];
    code(&format!("{head}\n[… {} bytes …]\n{tail}", text.len() - head.len() - tail.len()))
}

/// Words in one line without control characters and backticks: for a list that is fenced as a whole.
pub(super) fn one_line(text: &str, longest: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() || c == '`' { ' ' } else { c }).collect();
    let joined = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    if joined.chars().count() <= longest {
        return joined;
    }
    let cut: String = joined.chars().take(longest.saturating_sub(1)).collect();
    format!("{}…", cut.trim_end())
}

fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_longer_than_any_within() {
        assert_eq!(code("a\n"), "```\na\n```");
        assert_eq!(code("a ```` b"), "`````\na ```` b\n`````");
    }

    #[test]
    fn a_long_log_keeps_both_ends_and_says_how_much_is_missing() {
        let long = format!("begin{}end", "ä".repeat(LOG));
        let shown = log(&long);
        assert!(shown.contains("begin") && shown.contains("end\n```") && shown.contains("bytes …]"), "{shown}");
        assert!(shown.len() < LOG + 100);
        assert_eq!(log(" \n"), "");
    }

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(one_line("a\n\tb `c`\u{1b}[0m", 20), "a b c [0m");
        assert_eq!(one_line("abcdef", 4), "abc…");
    }
}
