//! Whether a kernel is simpler than another: fewer tokens of code.
//!
//! Tokens rather than lines or bytes, so that reformatting, deleting comments and shortening names gain nothing. The
//! front matter does not count: it is a comment to the compiler, and a change of tunables is not a simplification.

use crate::kernel::{KernelFile, Language};

/// How many tokens fewer a simpler kernel has at least: less is a matter of taste.
const LEAST_TOKENS: usize = 8;

/// And as a share of the incumbent's.
const LEAST_SHARE: f64 = 0.02;

/// Whether `candidate` has clearly less code than `incumbent`: at least 8 tokens and 2 % fewer.
#[must_use]
pub fn is_simpler(incumbent: &str, candidate: &str) -> bool {
    let [before, after] = [incumbent, candidate].map(|text| match KernelFile::parse(text) {
        // Its comments and docstrings are Python's, which are no code either.
        Ok(file) if file.language == Language::Triton => count_tokens(&without_python_comments(file.code())),
        _ => count_tokens(text),
    });
    let least = LEAST_TOKENS.max((before as f64 * LEAST_SHARE).ceil() as usize);
    after > 0 && after + least <= before
}

/// A Python text without comments and texts in three quotes.
fn without_python_comments(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['#', '"', '\'']) {
        let (before, from) = rest.split_at(at);
        kept.push_str(before);
        let end = if let Some(text) = from.strip_prefix("\"\"\"") {
            text.find("\"\"\"").map_or(from.len(), |end| end + 6)
        } else if from.starts_with('#') {
            from.find('\n').unwrap_or(from.len())
        } else {
            let end = quoted(from, from.chars().next().unwrap_or('"'));
            kept.push_str(&from[..end]);
            end
        };
        rest = &from[end..];
    }
    kept + rest
}

/// Tokens of C-like text: words and numbers count one each, a string one, any other visible character one.
#[must_use]
pub fn count_tokens(text: &str) -> usize {
    let mut count = 0;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = if let Some(comment) = rest.strip_prefix("/*") {
            comment.find("*/").map_or(rest.len(), |end| end + 4)
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first.is_whitespace() {
            first.len_utf8()
        } else {
            count += 1;
            if first == '"' || first == '\'' {
                quoted(rest, first)
            } else if is_word(first) {
                rest.find(|c| !is_word(c)).unwrap_or(rest.len())
            } else {
                first.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    count
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Bytes of the quoted text that `text` begins with, both quotes included; of a quote that its line does not close, the quote alone: what
/// a preprocessor leaves out may hold such a one, and what follows it is code.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\n' => return quote.len_utf8(),
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    quote.len_utf8()
}

#[cfg(test)]
mod tests {
    #[test]
    fn comments_and_docstrings_of_python_are_no_code() {
        let front = "\"\"\"\n---\nop = \"x\"\ndtypes = [\"f32\"]\n[[launch]]\nkernel = \"k\"\ngrid = [\"1\"]\nargs = []\n---\n\"\"\"\n";
        let code = "@triton.jit\ndef k(x):\n    tl.store(x, float(\"inf\"))\n";
        let told =
            code.replace("):\n", "):\n    \"\"\"Stores one.\"\"\"  # and \"nothing\" else, in so many words as this\n");
        assert_eq!(
            without_python_comments(&told).split_whitespace().collect::<String>(),
            code.split_whitespace().collect::<String>()
        );
        assert!(!is_simpler(&format!("{front}{told}"), &format!("{front}{code}")));
        let longer = format!("{front}{code}{}", "y = x + 1\n".repeat(3));
        assert!(is_simpler(&longer, &format!("{front}{code}")));
    }

    use super::*;

    #[test]
    fn a_quote_that_is_never_closed_hides_no_code() {
        let code = "int a = 1; int b = 2; int c = 3;\n".repeat(20);
        let hidden = format!("#if 0\n'\n#endif\n{code}#if 0\n'\n#endif\n");
        assert!(count_tokens(&hidden) > count_tokens(&code));
        assert_eq!(count_tokens("char c = '\\n', *s = \"a b \\\" c\";"), 10);
    }

    const LONG: &str =
        "/*---\nop = \"x\"\n---*/\nvoid f(float *y) { y[0] = 1.0f + 2.0f; y[1] = 2.0f + 1.0f; y[2] = 3; }";

    #[test]
    fn comments_layout_and_names_do_not_count() {
        assert_eq!(count_tokens("int a; // one\n/* two\n three */ b"), 4);
        assert_eq!(count_tokens("  int   long_name ;\n\n"), count_tokens("int a;"));
        assert_eq!(count_tokens(""), 0);
        assert_eq!(count_tokens("/* never closed"), 0);
    }

    #[test]
    fn a_string_is_one_token_whatever_stands_in_it() {
        assert_eq!(count_tokens(r#"f("/* no comment \" // ")"#), 4);
        assert_eq!(count_tokens("'\\'' + 'x'"), 3);
        assert_eq!(count_tokens("\"never closed"), 3);
    }

    #[test]
    fn clearly_less_code_is_simpler_and_little_less_is_not() {
        let shorter = LONG.replace(" y[1] = 2.0f + 1.0f;", "");
        assert!(is_simpler(LONG, &shorter));
        assert!(!is_simpler(&shorter, LONG));
        assert!(!is_simpler(LONG, LONG));
        assert!(!is_simpler(LONG, &LONG.replace(" + 2.0f", "")));
    }

    #[test]
    fn another_front_matter_is_not_simpler_and_nothing_is_not_a_kernel() {
        assert!(!is_simpler(LONG, &LONG.replace("op = \"x\"\n", "")));
        assert!(!is_simpler(LONG, ""));
    }
}
