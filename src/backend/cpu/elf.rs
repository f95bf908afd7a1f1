//! What a compiled kernel may be: an allow-list over its ELF file.
//!
//! Code that runs at load time, symbols that could stand in for others', and memory that outlives a launch are refused
//! here, whatever spelling of C produced them.

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, SymbolIndex};

/// The one function an image exports: `void ws_entry(void *const *, const int64_t *, const float *)`.
pub const ENTRY: &str = "ws_entry";

/// Functions of the harness and of the C library that a kernel may call.
const IMPORTS: &[&str] = &[
    "ws_parallel",
    "memcpy",
    "memset",
    "memmove",
    "memcmp",
    "malloc",
    "calloc",
    "free",
    "aligned_alloc",
    "abs",
    "labs",
    "llabs",
    "__stack_chk_fail",
];

/// Functions of libm, each also with the suffix `f`.
const MATH: &[&str] = &[
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp10",
    "exp2",
    "expm1",
    "fabs",
    "fdim",
    "floor",
    "fma",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "hypot",
    "ilogb",
    "ldexp",
    "lgamma",
    "llrint",
    "llround",
    "log",
    "log10",
    "log1p",
    "log2",
    "logb",
    "lrint",
    "lround",
    "modf",
    "nearbyint",
    "nextafter",
    "pow",
    "remainder",
    "rint",
    "round",
    "roundeven",
    "scalbln",
    "scalbn",
    "sin",
    "sincos",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "tgamma",
    "trunc",
];

/// Libraries an image may need.
const LIBRARIES: [&str; 6] = ["libc.", "libm.", "libmvec.", "libgcc_s.", "ld-linux", "ld-musl"];

/// Writable sections that are the linker's own and read-only once relocated.
const RELOCATED: [&str; 4] = [".dynamic", ".got", ".got.plt", ".data.rel.ro"];

/// Sections whose code or pointers run at load or unload time.
const LOAD_TIME: [&str; 8] =
    [".init", ".fini", ".init_array", ".fini_array", ".preinit_array", ".ctors", ".dtors", ".jcr"];

type Header = elf::FileHeader64<Endianness>;

/// Checks an image against the allow-list.
///
/// # Errors
/// What is not allowed, in words.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(|error| format!("not an ELF shared object: {error}"))?;
    let endian = file.endian();
    if file.elf_header().e_type(endian) != elf::ET_DYN {
        return Err("not a shared object".into());
    }
    let writable = writable_data(&file, endian);
    segments(file.elf_program_headers(), endian, &writable)?;
    sections(&file, endian, &writable)?;
    symbols(&file, endian)?;
    needed(file.elf_header(), endian, bytes)
}

/// Why data that a kernel could write to is refused, with its name where the image tells it.
fn writable_data(file: &ElfFile64<'_>, endian: Endianness) -> String {
    let sections = file.elf_section_table();
    let table = file.elf_symbol_table();
    let mut names = table.iter().enumerate().filter_map(|(index, symbol)| {
        let section = symbol.st_shndx(endian);
        let at = table.symbol_section(endian, symbol, SymbolIndex(index)).ok()??;
        let section = (section != elf::SHN_ABS).then(|| sections.section(at).ok())??;
        let name = sections.section_name(endian, section).ok()?;
        let relocated = is_relocated(&String::from_utf8_lossy(name));
        let written = section.sh_flags(endian) & u64::from(elf::SHF_WRITE) != 0 && !relocated;
        let data = matches!(symbol.st_type(), elf::STT_OBJECT | elf::STT_TLS);
        let name = symbol.name(endian, table.strings()).ok()?;
        // What is static in a function has a number behind its name.
        let name = String::from_utf8_lossy(name).split('.').next().unwrap_or_default().to_owned();
        (written && data && !name.is_empty()).then(|| format!("`{name}`"))
    });
    let named: Vec<String> = names.by_ref().take(3).collect();
    let named = if named.is_empty() { "the kernel".to_owned() } else { named.join(", ") };
    let more = names.count();
    let others = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "{named}{others}: writable static data; mutable static state is forbidden. Keep it on the stack or in a `[[scratch]]` buffer \
         of the front matter, or make it `const`"
    )
}

/// Whether a section is writable only until the loader is done.
fn is_relocated(name: &str) -> bool {
    RELOCATED.contains(&name) || name.starts_with(".data.rel.ro.")
}

fn segments(headers: &[elf::ProgramHeader64<Endianness>], endian: Endianness, writable: &str) -> Result<(), String> {
    let range = |header: &elf::ProgramHeader64<Endianness>| {
        let start = header.p_vaddr(endian);
        start..start.saturating_add(header.p_memsz(endian))
    };
    let relocated: Vec<_> = headers.iter().filter(|h| h.p_type(endian) == elf::PT_GNU_RELRO).map(range).collect();
    for header in headers {
        let flags = header.p_flags(endian);
        match header.p_type(endian) {
            elf::PT_TLS => return Err(format!("thread-local variables: {writable}")),
            elf::PT_INTERP => return Err("an interpreter".into()),
            elf::PT_GNU_STACK if flags & elf::PF_X != 0 => return Err("an executable stack".into()),
            elf::PT_LOAD if flags & elf::PF_W != 0 && flags & elf::PF_X != 0 => {
                return Err("memory both writable and executable".into());
            }
            elf::PT_LOAD if flags & elf::PF_W != 0 => {
                let own = range(header);
                if !own.is_empty() && !relocated.iter().any(|r| r.start <= own.start && r.end >= own.end) {
                    return Err(writable.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn sections(file: &ElfFile64<'_>, endian: Endianness, writable: &str) -> Result<(), String> {
    let table = file.elf_section_table();
    for section in table.iter() {
        let name = table.section_name(endian, section).map_err(|_| "a section without a name".to_owned())?;
        let name = String::from_utf8_lossy(name);
        let flags = section.sh_flags(endian);
        if flags & u64::from(elf::SHF_ALLOC) == 0 || section.sh_size(endian) == 0 {
            continue;
        }
        if LOAD_TIME.iter().any(|bad| name == *bad || name.starts_with(&format!("{bad}."))) {
            return Err(format!("section {name}: code may not run when a kernel is loaded"));
        }
        if flags & u64::from(elf::SHF_WRITE) != 0 && !is_relocated(&name) {
            return Err(format!("section {name}: {writable}"));
        }
    }
    Ok(())
}

fn symbols(file: &ElfFile64<'_>, endian: Endianness) -> Result<(), String> {
    let mut entries = 0;
    for table in [file.elf_symbol_table(), file.elf_dynamic_symbol_table()] {
        if table.iter().any(|symbol| symbol.st_type() == elf::STT_GNU_IFUNC) {
            return Err("an indirect function: code may not run when a kernel is loaded".into());
        }
    }
    let table = file.elf_dynamic_symbol_table();
    for symbol in table.iter().skip(1) {
        let name = symbol.name(endian, table.strings()).map_err(|_| "a symbol without a name".to_owned())?;
        let name = String::from_utf8_lossy(name);
        if symbol.is_undefined(endian) {
            if !may_import(&name) {
                return Err(format!("it calls `{name}`, which the file does not define and a kernel may not call"));
            }
        } else if name == ENTRY && symbol.st_type() == elf::STT_FUNC {
            entries += 1;
        } else {
            return Err(format!("it exports `{name}`; only the operation's function may be seen"));
        }
    }
    if entries == 1 { Ok(()) } else { Err(format!("it does not export `{ENTRY}`: the text cuts the file short")) }
}

fn may_import(name: &str) -> bool {
    let math = |name: &str| MATH.contains(&name) || name.strip_suffix('f').is_some_and(|name| MATH.contains(&name));
    IMPORTS.contains(&name) || math(name)
}

fn needed(header: &Header, endian: Endianness, bytes: &[u8]) -> Result<(), String> {
    let bad = |error: object::Error| format!("dynamic section: {error}");
    let sections = header.sections(endian, bytes).map_err(bad)?;
    let Some((entries, link)) = sections.dynamic(endian, bytes).map_err(bad)? else {
        return Err("no dynamic section".into());
    };
    let strings = sections.strings(endian, bytes, link).map_err(bad)?;
    for entry in entries {
        match entry.d_tag(endian) {
            elf::DT_NEEDED => {
                let name = entry.string(endian, strings).map_err(bad)?;
                let name = String::from_utf8_lossy(name).into_owned();
                if !LIBRARIES.iter().any(|library| name.starts_with(library)) {
                    return Err(format!("it needs the library `{name}`"));
                }
            }
            elf::DT_INIT | elf::DT_FINI | elf::DT_INIT_ARRAY | elf::DT_FINI_ARRAY | elf::DT_PREINIT_ARRAY => {
                return Err("code may not run when a kernel is loaded".into());
            }
            elf::DT_RPATH | elf::DT_RUNPATH => return Err("it names a search path for libraries".into()),
            _ => {}
        }
    }
    Ok(())
}
