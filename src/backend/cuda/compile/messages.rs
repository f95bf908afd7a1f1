//! What the compiler says: resources of each kernel, and words for people.

use std::fmt::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Bytes of the compiler's words that are kept.
const KEPT: usize = 8 << 10;

/// What a kernel needs, as the assembler reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// The kernel, as the launch plan writes it.
    pub kernel: String,
    /// Registers a thread.
    pub registers: u32,
    /// Bytes a thread stores to memory because registers ran out.
    pub spill_stores: u32,
    /// Bytes it loads back.
    pub spill_loads: u32,
    /// Bytes of stack a thread.
    pub stack: u32,
    /// Bytes of shared memory a block has by declaration.
    pub shared: u32,
}

impl Resources {
    /// As a line of a log.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = format!("{}: {} registers", self.kernel, self.registers);
        let spilled = self.spill_stores + self.spill_loads;
        let _ = match spilled {
            0 => write!(line, ", no spills"),
            _ => write!(line, ", {} bytes spilled and {} loaded back", self.spill_stores, self.spill_loads),
        };
        if self.stack > 0 {
            let _ = write!(line, ", {} bytes of stack", self.stack);
        }
        if self.shared > 0 {
            let _ = write!(line, ", {} bytes of static shared memory", self.shared);
        }
        line
    }
}

/// Resources by lowered name, and what else was said.
pub(super) fn read(log: &str) -> (Vec<Resources>, String) {
    let mut all: Vec<Resources> = Vec::new();
    let mut current: Option<Resources> = None;
    let mut properties_of_current = false;
    let mut rest = String::new();
    for line in log.lines() {
        let Some(said) = ptxas(line) else {
            rest.push_str(line);
            rest.push('\n');
            continue;
        };
        if let Some(name) = said.strip_prefix("Compiling entry function '").and_then(|name| name.split('\'').next()) {
            all.extend(current.take());
            current = Some(Resources { kernel: name.to_owned(), ..Resources::default() });
        } else if let Some(name) = said.strip_prefix("Function properties for ") {
            // Functions that were not inlined have properties too.
            properties_of_current = current.as_ref().is_some_and(|current| current.kernel == name);
        } else if let Some(current) = &mut current {
            for part in said.split(',').map(str::trim) {
                let Some((number, what)) = number(part.strip_prefix("Used ").unwrap_or(part)) else { continue };
                match what {
                    "registers" => current.registers = number,
                    "bytes stack frame" if properties_of_current => current.stack = number,
                    "bytes cumulative stack size" => current.stack = current.stack.max(number),
                    "bytes spill stores" => current.spill_stores = current.spill_stores.max(number),
                    "bytes spill loads" => current.spill_loads = current.spill_loads.max(number),
                    "bytes smem" => current.shared = number,
                    _ => {}
                }
            }
        }
    }
    all.extend(current);
    (all, rest)
}

/// What the assembler says in a line of information, without its name.
fn ptxas(line: &str) -> Option<&str> {
    let said = line.strip_prefix("ptxas")?.trim_start();
    let said = said.strip_prefix("info").or_else(|| said.strip_prefix('.'))?;
    Some(said.trim_start().trim_start_matches(':').trim())
}

fn number(text: &str) -> Option<(u32, &str)> {
    let (number, what) = text.split_once(' ')?;
    Some((number.parse().ok()?, what.trim()))
}

/// Words for people and agents: no paths of the machine, and not too many.
pub(super) fn clean(log: &str, folders: &[impl AsRef<Path>]) -> String {
    let mut text = log.to_owned();
    for folder in folders {
        let folder = folder.as_ref().to_string_lossy();
        text = text.replace(&format!("{folder}/"), "");
    }
    let text = text.trim();
    if text.len() <= KEPT {
        return text.to_owned();
    }
    let end = (0..=KEPT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    format!("{}\n(cut)", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "rmsnorm.cu(12): warning #177-D: variable \"x\" was declared but never referenced\n\
        ptxas info    : 64 bytes gmem\n\
        ptxas info    : Compiling entry function '_Z1gILi3EEvPf' for 'sm_90a'\n\
        ptxas info    : Function properties for _Z1gILi3EEvPf\n\
        ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
        ptxas info    : Used 24 registers, used 0 barriers\n\
        ptxas info    : Compile time = 8.830 ms\n\
        ptxas info    : Compiling entry function 'k' for 'sm_90a'\n\
        ptxas info    : Function properties for k\n\
        \x20   16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
        ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
        ptxas info    : Used 255 registers, used 1 barriers, 400 bytes cumulative stack size, 1424 bytes smem, 360 bytes cmem[0]\n\
        ptxas warning : Value of threads per SM is out of range\n";

    #[test]
    fn resources_and_words_are_told_apart() {
        let (resources, rest) = read(LOG);
        assert_eq!(resources.len(), 2);
        assert_eq!((resources[0].kernel.as_str(), resources[0].registers), ("_Z1gILi3EEvPf", 24));
        let k = &resources[1];
        assert_eq!((k.registers, k.spill_stores, k.spill_loads, k.stack, k.shared), (255, 8, 12, 400, 1424));
        assert!(rest.starts_with("rmsnorm.cu(12): warning") && rest.contains("ptxas warning"), "{rest}");
        assert_eq!(resources[0].line(), "_Z1gILi3EEvPf: 24 registers, no spills");
        assert!(
            k.line().contains("8 bytes spilled and 12 loaded back, 400 bytes of stack, 1424 bytes"),
            "{}",
            k.line()
        );
    }

    #[test]
    fn words_have_no_paths_of_the_machine_and_an_end() {
        assert_eq!(clean(" /a/b/mma.h(5): no\n", &["/a/b"]), "mma.h(5): no");
        assert!(clean(&"ä".repeat(KEPT), &["/x"]).ends_with("(cut)"));
    }
}
