//! Which program this is: verdicts of different programs are not comparable.

use std::fs::File;
use std::path::Path;

use object::Endianness;
use object::read::elf::ElfFile64;
use object::read::{Object, ReadCache};

/// BLAKE3, in hex, of this very program's build id, which its linker took from all of its contents; of the whole file where
/// there is none. A worker starts for many a measurement, and a program of a hundred megabytes takes long to read.
///
/// # Errors
/// The file system.
pub fn judge_hash() -> std::io::Result<String> {
    judge_hash_of(Path::new("/proc/self/exe"))
}

/// The same of a program's file.
///
/// # Errors
/// The file system.
pub fn judge_hash_of(program: &Path) -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    match build_id(&File::open(program)?) {
        Some(id) => hasher.update(&id),
        None => hasher.update_reader(File::open(program)?)?,
    };
    Ok(hasher.finalize().to_hex().to_string())
}

fn build_id(program: &File) -> Option<Vec<u8>> {
    let cache = ReadCache::new(program);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    elf.build_id().ok().flatten().filter(|id| !id.is_empty()).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_one_identity_and_what_is_no_program_has_none() {
        let (first, second) = (judge_hash().unwrap_or_default(), judge_hash().unwrap_or_default());
        assert_eq!((first.len(), &first), (64, &second));
        let text = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        assert_eq!(text.ok().and_then(|text| build_id(&text)), None);
    }
}
