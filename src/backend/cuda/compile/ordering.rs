//! Kernels that read what other blocks wrote: whether an order stands between.
//!
//! A kernel that stores, then tells others so (it counts with an atomic, or raises a flag that is polled), and then loads what it
//! stored to, needs a fence between its stores and what tells of them: on every way from these stores to at least one such
//! instruction, through all functions that are called.

use std::collections::{BTreeMap, BTreeSet};

use crate::defence::Defence;

use super::facts::{Facts, Origin};
use super::flow::{Graph, functions};
use super::ptx::{Instruction, Numbers, Statement};
use super::waits;

/// The kernels of a text that wait for the launch before them, whatever way they take, and the places of those parameters
/// that a way uses before.
pub(super) type Waiting = BTreeMap<String, BTreeSet<usize>>;

/// The kernels of a text that wait for the launch before them.
///
/// # Errors
/// A sentence: a kernel reads what other blocks write and has no fence.
pub(super) fn check(statements: &[Statement<'_>], numbers: &Numbers) -> Result<Waiting, String> {
    let all = functions(statements);
    let any =
        |kinds: &[&str]| all.iter().flat_map(|one| &one.steps).any(|step| kinds.contains(&step.instruction.kind()));
    let (tells, waits) = (any(&["atom", "red"]) || any(&["ld"]), any(&["griddepcontrol"]));
    let mut waiting = Waiting::new();
    for kernel in all.iter().filter(|one| one.is_kernel && (tells || waits)) {
        let graph = Graph::of(kernel, &all);
        let concerned = graph.nodes.iter().any(|node| counts(&node.step.instruction) || polls(&node.step.instruction));
        if !concerned && !waits {
            continue;
        }
        let facts = Facts::of(&graph, numbers.get(kernel.name));
        if concerned && Defence::LastBlockFences.stands() {
            unfenced(&graph, &facts)?;
        }
        if let Some(early) = waits::early(&graph, &facts) {
            waiting.insert(
                kernel.name.to_owned(),
                early.places().take_while(|at| *at < kernel.parameters.len()).collect(),
            );
        }
    }
    Ok(waiting)
}

/// Refuses a kernel that reads, after it told others, what it stored to before, where nothing orders the two for other blocks.
fn unfenced<'a>(graph: &Graph<'_, 'a>, facts: &Facts<'a>) -> Result<(), String> {
    let each = |what: &dyn Fn(usize, &Instruction<'a>) -> Origin| -> Vec<Origin> {
        graph.nodes.iter().map(|node| what(node.copy, &node.step.instruction)).collect()
    };
    let stored = each(&|copy, instruction| facts.stored(copy, instruction));
    let loaded = each(&|copy, instruction| match instruction.kind() {
        // What an atomic gives is no older than the atomic.
        "atom" | "red" => Origin::default(),
        _ => facts.loaded(copy, instruction),
    });
    let polled = graph.nodes.iter().zip(&loaded).filter(|(node, _)| polls(&node.step.instruction));
    let polled = polled.fold(Origin::default(), |all, (_, one)| all | *one);
    let (forward, backward) = (graph.forward(), graph.backward());
    let ordered: Vec<bool> = graph.nodes.iter().map(|node| orders(&node.step.instruction)).collect();
    let (mut bare, mut good) = (Origin::default(), Origin::default());
    for (at, node) in graph.nodes.iter().enumerate() {
        let instruction = &node.step.instruction;
        // A flag that is only stored to is not what it tells of.
        let flag = match instruction.kind() {
            "atom" if !stored[at].is_empty() => Origin::default(),
            "red" if stored[at].meets(polled) => Origin::default(),
            "st" if says_more(instruction) && stored[at].meets(polled) => stored[at],
            _ => continue,
        };
        let later = gather(&loaded, &graph.reach(at, &forward, |_| true));
        let before = gather(&stored, &graph.reach(at, &backward, |_| true)) & later;
        // An order on the way lets no store before it through; neither does one that is in this instruction itself.
        let none_between = |at: usize| !ordered[at];
        let through = match ordered[at] {
            true => Origin::default(),
            false => gather(&stored, &graph.reach(at, &backward, none_between)) & later,
        };
        bare = bare | through.without(flag);
        good = good | before.without(through);
    }
    if bare.without(good).is_empty() {
        return Ok(());
    }
    Err(format!(
        "`{}` reads what other blocks wrote after an atomic that counts them (or a flag), and no fence orders the two: put \
         __threadfence() before and after the atomic",
        graph.kernel.name
    ))
}

fn gather(of: &[Origin], which: &[bool]) -> Origin {
    of.iter().zip(which).filter(|(_, which)| **which).fold(Origin::default(), |all, (one, _)| all | *one)
}

/// Whether an instruction counts something in the device's memory.
fn counts(instruction: &Instruction<'_>) -> bool {
    instruction.kind() == "atom" && !instruction.in_space("shared")
}

/// Whether it is a load or a store of the kind that others are watched with.
fn says_more(instruction: &Instruction<'_>) -> bool {
    ["volatile", "relaxed", "acquire", "release", "mmio"].iter().any(|kind| instruction.has(kind))
}

fn polls(instruction: &Instruction<'_>) -> bool {
    instruction.kind() == "ld" && says_more(instruction) && !instruction.in_space("shared")
}

/// Whether an instruction orders what a thread did to memory before, for all of the device.
fn orders(instruction: &Instruction<'_>) -> bool {
    let narrow = instruction.has("cta") || instruction.has("cluster");
    let any = |kinds: &[&str]| kinds.iter().any(|kind| instruction.has(kind));
    match instruction.kind() {
        "membar" => !narrow && !instruction.has("proxy"),
        "fence" => any(&["sc", "acq_rel", "release"]) && !narrow && !instruction.has("proxy"),
        "atom" | "red" | "st" => any(&["release", "acq_rel"]) && !narrow,
        _ => false,
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
        assert!(ptx::check(&LAST.replace("BEFORE", "membar.gl")).unwrap().waiting.is_empty());
        let waits = LAST.replace("BEFORE", "griddepcontrol.wait;\nmembar.gl");
        assert!(ptx::check(&waits).unwrap().waiting.contains_key("k"));
    }

    /// The same, where blocks are counted in a function.
    fn called(function: &str, before: &str) -> Option<String> {
        let call = "{ .param .b64 param0;\nst.param.b64 [param0+0], %rd2;\n.param .b32 retval0;\n\
            call.uni (retval0), count, (param0);\nld.param.b32 %r1, [retval0+0]; }\nbar.sync 0";
        let text = LAST.replace("atom.global.add.u32 %r1, [%rd2], 1", call).replace("AFTER;", "");
        ptx::check(&format!("{function}\n{}", text.replace("BEFORE", before))).err()
    }

    const COUNT: &str = ".func (.param .b32 func_retval0) count(.param .b64 count_param_0)\n{\n.reg .b64 %rd<2>;\n\
        ld.param.b64 %rd1, [count_param_0];\natom.add.u32 %r1, [%rd1], 1;\nst.param.b32 [func_retval0+0], %r1;\nret;\n}";

    #[test]
    fn a_call_is_no_fence_and_counts_where_what_is_called_counts() {
        assert!(called(COUNT, "bar.sync 0").unwrap().contains("`k` reads what other blocks wrote"));
        assert_eq!(called(COUNT, "membar.gl"), None);
        // The function that is called orders, before it counts, or when it is too late.
        assert_eq!(called(&COUNT.replace("atom.add", "membar.gl;\natom.add"), "bar.sync 0"), None);
        assert!(called(&COUNT.replace("st.param", "membar.gl;\nst.param"), "bar.sync 0").is_some());
        // So does another one.
        let fence = ".func order()\n{\nmembar.gl;\nret;\n}";
        assert_eq!(called(&format!("{fence}\n{COUNT}"), "call.uni order"), None);
        let empty = fence.replace("membar.gl;", "");
        assert!(called(&format!("{empty}\n{COUNT}"), "call.uni order").is_some());
        // Through a pointer it may be any.
        let text = format!("{fence}\n{COUNT}");
        assert!(called(&text, "call %rd7, (), prototype_0").is_some());
    }

    #[test]
    fn a_fence_that_not_every_way_meets_is_none() {
        assert!(error("@%p2 bra $L2;\nmembar.gl;\n$L2:", "bar.sync 0").is_some());
        // Who counts has ordered; others do not come by.
        assert_eq!(error("bar.sync 0;\n@%p2 bra $L2;\nmembar.gl", "$L2: bar.sync 0"), None);
    }

    #[test]
    fn flags_that_are_polled_are_counts() {
        let flags = LAST.replace("atom.global.add.u32 %r1, [%rd2], 1", "red.global.add.u32 [%rd2], 1");
        let poll = flags.replace("AFTER", "$L2: ld.volatile.global.u32 %r1, [%rd2];\n@%p2 bra $L2");
        assert!(ptx::check(&poll).is_err());
        ptx::check(&poll.replace("BEFORE", "fence.acq_rel.gpu")).unwrap();
        let stored = poll.replace("red.global.add.u32 [%rd2], 1", "st.relaxed.gpu.global.u32 [%rd2], 1");
        assert!(ptx::check(&stored).is_err());
        ptx::check(&stored.replace("st.relaxed", "st.release")).unwrap();
    }
}
