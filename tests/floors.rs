//! The rooms of `src/` stand on floors, and import from floors below only: `docs/architecture.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms by floor, from the top to the ground: the table of `docs/architecture.md`. Rooms on one line are neighbours and do not
/// import each other.
fn floors() -> Vec<Vec<String>> {
    let document = include_str!("../docs/architecture.md");
    let rows = document.lines().skip_while(|line| !line.starts_with("| floor |")).skip(2);
    let rooms = |row: &str| row.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    rows.take_while(|line| line.starts_with('|')).map(rooms).collect()
}

/// The longest file that is still one thing.
const MAX_LINES: usize = 500;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src is there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> (PathBuf, Vec<PathBuf>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    (root, files)
}

/// The rooms a text refers to as `crate::room`.
fn rooms_used(text: &str) -> Vec<(usize, String)> {
    let mut used = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for (at, _) in line.match_indices("crate::") {
            let room: String =
                line[at + "crate::".len()..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            used.push((number + 1, room));
        }
    }
    used
}

#[test]
fn a_room_imports_only_from_floors_below_its_own() {
    let floors = floors();
    assert!(floors.len() > 10, "the table of docs/architecture.md was not found");
    let floor: BTreeMap<&str, usize> = floors
        .iter()
        .enumerate()
        .flat_map(|(height, rooms)| rooms.iter().map(move |room| (room.as_str(), height)))
        .collect();
    let (root, files) = all_sources();
    let mut wrong = Vec::new();
    for file in files {
        let relative = file.strip_prefix(&root).expect("below src");
        let Some(room) = relative.components().next().and_then(|part| part.as_os_str().to_str()) else { continue };
        if room.ends_with(".rs") {
            continue;
        }
        let Some(own) = floor.get(room) else {
            wrong.push(format!("room `{room}` stands on no floor"));
            continue;
        };
        for (line, used) in rooms_used(&fs::read_to_string(&file).expect("readable")) {
            match floor.get(used.as_str()) {
                Some(below) if below > own || used == room => {}
                Some(_) => wrong.push(format!("{}:{line}: {room} imports from {used}", relative.display())),
                None => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_is_short_enough_to_be_one_thing() {
    let (root, files) = all_sources();
    let long: Vec<String> = files
        .iter()
        .filter_map(|file| {
            let lines = fs::read_to_string(file).expect("readable").lines().count();
            (lines > MAX_LINES)
                .then(|| format!("{}: {lines} lines", file.strip_prefix(&root).expect("below").display()))
        })
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn only_the_command_line_prints() {
    let (root, files) = all_sources();
    let printing: Vec<String> = files
        .iter()
        .filter(|file| !file.starts_with(root.join("cli")))
        .filter(|file| {
            let text = fs::read_to_string(file).expect("readable");
            ["println!", "eprintln!", "print!(", "dbg!"].iter().any(|macro_name| {
                text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(macro_name))
            })
        })
        .map(|file| file.display().to_string())
        .collect();
    assert!(printing.is_empty(), "{}", printing.join("\n"));
}
