//! What a cubin may have in it.

use std::collections::BTreeSet;

use object::Endianness;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader, Sym};

/// Machine number of NVIDIA's devices.
const EM_CUDA: u16 = 190;

/// What the driver itself resolves, and no function of its own.
const RESOLVED: &str = ".nv.";

/// Checks a cubin: nothing is linked to it, and its variables in device memory are among those known to be only `read`.
///
/// # Errors
/// A sentence: what is refused.
pub(super) fn check(bytes: &[u8], read: &BTreeSet<String>) -> Result<(), String> {
    let malformed = |error: object::Error| format!("not a cubin: {error}");
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(malformed)?;
    let endian = file.endian();
    if file.elf_header().e_machine(endian) != EM_CUDA {
        return Err("not a cubin".into());
    }
    let table = file.elf_section_table();
    let mut variables = BTreeSet::new();
    for (index, section) in table.enumerate() {
        let name = table.section_name(endian, section).map_err(malformed)?;
        let name = String::from_utf8_lossy(name);
        let flags = section.sh_flags(endian);
        let allocated = flags & u64::from(elf::SHF_ALLOC) != 0 && section.sh_size(endian) > 0;
        let writable = flags & u64::from(elf::SHF_WRITE) != 0;
        if !allocated || !writable {
            continue;
        }
        // From Blackwell on, code and data stand there once more in the form that the driver finishes ("Mercury").
        let name = name.strip_prefix(".nv.merc").unwrap_or(&name);
        // Shared and local memory are a block's and a thread's own, and are filled with rubbish before launches that are judged.
        if name.starts_with(".nv.shared") || name.starts_with(".nv.local") {
            continue;
        }
        if name == ".nv.global" || name == ".nv.global.init" {
            variables.insert(index.0);
            continue;
        }
        return Err(format!("section {name} is memory that outlives a launch"));
    }
    let symbols = file.elf_symbol_table();
    for symbol in symbols.iter().skip(1) {
        let name = symbol.name(endian, symbols.strings()).map_err(malformed)?;
        let name = String::from_utf8_lossy(name);
        let place = symbol.st_shndx(endian);
        if place == elf::SHN_UNDEF {
            if !name.is_empty() && !name.starts_with(RESOLVED) {
                return Err(format!("it calls `{name}`, which the file does not define and a kernel may not call"));
            }
        } else if variables.contains(&usize::from(place))
            && symbol.st_type() != elf::STT_SECTION
            && !read.contains(name.as_ref())
        {
            return Err(format!("writable device memory that outlives a launch (`{name}`)"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rubbish_is_no_cubin() {
        for bytes in [&b""[..], b"\x7fELF", &[0u8; 4096][..]] {
            assert!(check(bytes, &BTreeSet::new()).is_err());
        }
        let own = std::fs::read("/proc/self/exe").unwrap_or_default();
        assert!(check(&own, &BTreeSet::new()).is_err_and(|what| what.starts_with("not a cubin")));
    }
}
