//! The instructions that agents work by, a section at a time: whole, they are more than most clients take at once.

/// A heading and where its section begins and ends, in bytes.
struct Section<'a> {
    depth: usize,
    title: &'a str,
    begins: usize,
    ends: usize,
}

/// The section with this title (in whatever case, with or without its marks), subsections included; without a title, what
/// stands before the first section, and the titles.
///
/// # Errors
/// There is no such section; the sentence names those there are.
pub(super) fn section(text: &str, title: Option<&str>) -> Result<String, String> {
    let sections = sections(text);
    let titles = || {
        let line =
            |section: &Section<'_>| format!("{}- {}", "  ".repeat(section.depth.saturating_sub(2)), section.title);
        sections.iter().filter(|section| section.depth > 1).map(line).collect::<Vec<_>>().join("\n")
    };
    let Some(wanted) = title.map(plain).filter(|title| !title.is_empty()) else {
        let ends = sections.iter().find(|section| section.depth > 1).map_or(text.len(), |section| section.begins);
        return Ok(format!("{}\n\nThe sections:\n\n{}", text[..ends].trim_end(), titles()));
    };
    match sections.iter().find(|section| plain(section.title) == wanted) {
        Some(section) => Ok(text[section.begins..section.ends].trim_end().to_owned()),
        None => Err(format!("there is no such section; there are\n{}", titles())),
    }
}

/// A title without marks, in lower case.
fn plain(title: &str) -> String {
    title.trim_start_matches(['#', ' ']).replace('`', "").trim().to_lowercase()
}

/// Every section; a line of code that begins with `#` is no heading.
fn sections(text: &str) -> Vec<Section<'_>> {
    let mut found: Vec<Section<'_>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let (mut at, mut in_code) = (0, false);
    for line in text.split_inclusive('\n') {
        in_code ^= line.trim_start().starts_with("```");
        let depth = line.bytes().take_while(|byte| *byte == b'#').count();
        if !in_code && (1..=6).contains(&depth) && line[depth..].starts_with(' ') {
            while let Some(last) = open.pop_if(|last| found[*last].depth >= depth) {
                found[last].ends = at;
            }
            open.push(found.len());
            found.push(Section { depth, title: line[depth..].trim(), begins: at, ends: text.len() });
        }
        at += line.len();
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TEXT: &str = "# All\n\nBefore.\n\n## The loop\n\n```sh\n# no heading\n```\nLoop.\n\n### `tune`\n\nTune.\n\n## Rules\n\nRules.\n";

    #[test]
    fn a_section_comes_with_its_subsections() {
        assert_eq!(
            section(TEXT, Some("the LOOP")).unwrap(),
            "## The loop\n\n```sh\n# no heading\n```\nLoop.\n\n### `tune`\n\nTune."
        );
        assert_eq!(section(TEXT, Some("tune")).unwrap(), "### `tune`\n\nTune.");
        assert_eq!(section(TEXT, Some("## Rules")).unwrap(), "## Rules\n\nRules.");
    }

    #[test]
    fn without_a_title_there_is_a_table_of_contents() {
        let contents = "# All\n\nBefore.\n\nThe sections:\n\n- The loop\n  - `tune`\n- Rules";
        assert_eq!(section(TEXT, None).unwrap(), contents);
        assert_eq!(section(TEXT, Some("  ")).unwrap(), contents);
    }

    #[test]
    fn an_unknown_title_is_answered_with_those_there_are() {
        assert!(section(TEXT, Some("../etc/passwd")).unwrap_err().contains("- Rules"));
        assert_eq!(section("", None).unwrap(), "\n\nThe sections:\n\n");
    }

    #[test]
    fn the_shipped_page_has_the_sections_that_the_instructions_name() {
        let text = crate::workspace::embedded("program.md").unwrap();
        for title in ["The loop", "The rules", "The kernel file", "Choosing what to try", "vector-loads"] {
            assert!(section(text, Some(title)).unwrap().len() > 100, "{title}");
        }
    }
}
