//! Lists the operations, starter kernels and program page, so that the binary carries a copy of each; and exports
//! `ws_parallel`, which the program provides to the kernels it loads.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// What a workspace may leave out, because the binary has it.
const CARRIED: [&str; 3] = ["reference", "kernels", "program.md"];

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=ws_parallel");
    let mut names = Vec::new();
    for name in CARRIED {
        println!("cargo::rerun-if-changed={name}");
        collect(&root, Path::new(name), &mut names)?;
    }
    names.sort();
    let mut table = String::from("[\n");
    for name in &names {
        // Not `root` itself: a target directory that several checkouts share keeps this table when one of them is gone.
        let path = format!("concat!(env!(\"CARGO_MANIFEST_DIR\"), {:?})", format!("/{name}"));
        // A `String` always accepts what is written to it.
        let _ = writeln!(table, "    ({name:?}, include_str!({path})),");
    }
    table.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("embedded.rs"), table)
}

/// Adds `path` (below `root`), or the files in it, as names with forward slashes.
fn collect(root: &Path, path: &Path, names: &mut Vec<String>) -> io::Result<()> {
    let full = root.join(path);
    if full.is_dir() {
        for entry in fs::read_dir(full)? {
            let name = entry?.file_name();
            if !name.to_string_lossy().starts_with('.') {
                collect(root, &path.join(name), names)?;
            }
        }
    } else if full.is_file() {
        names.push(path.to_string_lossy().replace('\\', "/"));
    }
    Ok(())
}
