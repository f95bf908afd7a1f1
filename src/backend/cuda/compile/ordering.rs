//! Kernels that other blocks or other launches must have written for: whether they make sure of it.
//!
//! Only what is clear is refused: a kernel that stores, counts blocks with an atomic, and then loads what it stored to, without
//! a fence of the device anywhere. And whoever starts before the launch in front of it has ended (`pdl`) must somewhere wait.

use std::collections::{BTreeMap, BTreeSet};

use crate::defence::Defence;

use super::ptx::{ARITHMETIC, Instruction, Statement, kernel, parameters, tokens};

/// The kernels of a text that wait for the launch before them.
///
/// # Errors
/// A sentence: a kernel reads what other blocks write and has no fence.
pub(super) fn check(statements: &[Statement<'_>]) -> Result<BTreeSet<String>, String> {
    let mut waiting = BTreeSet::new();
    let functions = statements.chunk_by(|one, next| one.function == next.function);
    // A function that is called may wait for its caller.
    let waits = |all: &[Statement<'_>]| all.iter().any(|one| one.text.contains("griddepcontrol.wait"));
    let mut shared = false;
    let mut kernels = Vec::new();
    for function in functions {
        match function.iter().find_map(|statement| kernel(statement.text)) {
            Some(name) => kernels.push((name, function)),
            None => shared |= waits(function),
        }
    }
    for (name, function) in kernels {
        unfenced(name, function)?;
        let calls = || function.iter().any(|one| Instruction::of(one.text).kind() == "call");
        if waits(function) || (shared && calls()) {
            waiting.insert(name.to_owned());
        }
    }
    Ok(waiting)
}

/// Refuses a kernel that reads, after an atomic that gives it a count, what it stored to before, where nothing orders the two for
/// the other blocks.
fn unfenced(name: &str, function: &[Statement<'_>]) -> Result<(), String> {
    let instructions: Vec<Instruction<'_>> = function.iter().map(|statement| Instruction::of(statement.text)).collect();
    let counts = |one: &Instruction<'_>| one.kind() == "atom" && !one.has("shared");
    if !Defence::LastBlockFences.stands() || !instructions.iter().any(counts) || instructions.iter().any(orders) {
        return Ok(());
    }
    let whose = origins(function, &instructions);
    let of = |text: &str| -> BTreeSet<&str> {
        tokens(text).filter_map(|token| whose.get(token)).flatten().copied().collect()
    };
    let address = |text: &str| -> String {
        text.split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map_or(String::new(), |(inside, _)| inside.to_owned())
    };
    let mut stored: BTreeSet<&str> = BTreeSet::new();
    let mut counted: BTreeSet<&str> = BTreeSet::new();
    for instruction in &instructions {
        let elsewhere = ["shared", "local", "param", "const"].iter().any(|space| instruction.has(space));
        match instruction.kind() {
            "st" | "red" if !elsewhere => stored.extend(of(&address(instruction.target))),
            "atom" if !elsewhere => {
                counted.clone_from(&stored);
                stored.extend(of(&address(instruction.sources)));
            }
            "ld" if !elsewhere => {
                let read = of(&address(instruction.sources));
                if read.intersection(&counted).next().is_some() {
                    return Err(format!(
                        "`{name}` reads what other blocks wrote after an atomic that counts them, and no fence orders the two: \
                         put __threadfence() before and after the atomic"
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether an instruction orders what a thread does to memory for all of the device.
fn orders(instruction: &Instruction<'_>) -> bool {
    let narrow = instruction.has("cta") || instruction.has("cluster");
    match instruction.kind() {
        "membar" => !narrow,
        "fence" => (instruction.has("sc") || instruction.has("acq_rel")) && !narrow,
        "atom" | "red" | "ld" | "st" => {
            ["acquire", "release", "acq_rel"].iter().any(|kind| instruction.has(kind)) && !narrow
        }
        // What is called may do so.
        "call" => true,
        _ => false,
    }
}

/// For each register the parameters that its value was computed from.
fn origins<'a>(function: &[Statement<'a>], instructions: &[Instruction<'a>]) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut whose: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for statement in function {
        for parameter in parameters(statement.text) {
            whose.insert(parameter, BTreeSet::from([parameter]));
        }
    }
    loop {
        let mut grown = false;
        for instruction in instructions {
            let of_parameter = instruction.kind() == "ld" && instruction.has("param");
            if !of_parameter && !ARITHMETIC.contains(&instruction.kind()) {
                continue;
            }
            let from: BTreeSet<&str> =
                tokens(instruction.sources).filter_map(|token| whose.get(token)).flatten().copied().collect();
            if from.is_empty() {
                continue;
            }
            for target in tokens(instruction.target) {
                let known = whose.entry(target).or_default();
                let before = known.len();
                known.extend(&from);
                grown |= known.len() > before;
            }
        }
        if !grown {
            return whose;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::ptx;

    const LAST: &str = ".visible .entry k(\n.param .u64 k_param_0,\n.param .u64 k_param_1\n)\n{\n.reg .b64 %rd<8>;\n\
        ld.param.u64 %rd1, [k_param_0];\nld.param.u64 %rd2, [k_param_1];\ncvta.to.global.u64 %rd3, %rd1;\n\
        st.global.f32 [%rd3], %f1;\nBEFORE;\natom.global.add.u32 %r1, [%rd2], 1;\nAFTER;\n@%p1 bra $L1;\n\
        add.s64 %rd4, %rd3, 4;\nld.global.f32 %f2, [%rd4];\n$L1:\nret;\n}";

    fn error(before: &str, after: &str) -> Option<String> {
        ptx::check(&LAST.replace("BEFORE", before).replace("AFTER", after)).err()
    }

    #[test]
    fn a_last_block_needs_a_fence_of_the_device() {
        let bare = error("bar.sync 0", "bar.sync 0").unwrap();
        assert!(bare.contains("`k` reads what other blocks wrote") && bare.contains("__threadfence()"), "{bare}");
        assert!(error("membar.cta", "fence.proxy.async").is_some());
        assert_eq!(error("membar.gl", "membar.gl"), None);
        assert_eq!(error("fence.acq_rel.gpu", "bar.sync 0"), None);
        let release = LAST.replace("atom.global.add", "atom.acq_rel.gpu.global.add");
        ptx::check(&release).unwrap();
    }

    #[test]
    fn what_is_no_such_pattern_passes() {
        // Nothing is read back, or not what was stored to, or only counted after reading.
        ptx::check(&LAST.replace("ld.global.f32 %f2, [%rd4]", "mov.f32 %f2, %f1")).unwrap();
        ptx::check(&LAST.replace("add.s64 %rd4, %rd3, 4", "add.s64 %rd4, %rd2, 4")).unwrap();
        ptx::check(&LAST.replace("atom.global.add.u32 %r1, [%rd2], 1", "red.global.add.u32 [%rd2], 1")).unwrap();
        ptx::check(&LAST.replace("st.global.f32 [%rd3]", "st.shared.f32 [%rd3]")).unwrap();
    }

    #[test]
    fn who_waits_is_known_by_name() {
        assert!(ptx::check(&LAST.replace("AFTER", "membar.gl")).unwrap().waiting.is_empty());
        let waits = LAST.replace("BEFORE", "griddepcontrol.wait").replace("AFTER", "membar.gl");
        assert!(ptx::check(&waits).unwrap().waiting.contains("k"));
    }
}
