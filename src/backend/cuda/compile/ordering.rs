//! Kernels that read what other blocks wrote: whether an order stands between.
//!
//! What a kernel stores to must not be loaded by a way that no order reaches (`ld.global.nc`).
//!
//! A kernel that stores, then tells others so (it counts with an atomic, or raises a flag that is polled), and then loads what it
//! stored to, needs a fence between its stores and what tells of them: on every way from these stores to at least one such
//! instruction, through all functions that are called. Where one thread tells of what other threads of its block stored, they must
//! also have met.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::defence::Defence;

use super::facts::{Condition, Facts, Origin};
use super::flow::{Graph, Node, flows, functions};
use super::leaving;
use super::lexer::Statement;
use super::ptx::{Instruction, Numbers, tokens};
use super::waits;

/// The kernels of a text that wait for the launch before them, whatever way they take, and the places of those parameters
/// that a way uses before, or loads from in no order.
pub(super) type Waiting = BTreeMap<String, BTreeSet<usize>>;

/// The kernels of a text that wait for the launch before them.
///
/// # Errors
/// A sentence: a kernel reads what other blocks write and has no fence.
pub(super) fn check(statements: &[Statement<'_>], numbers: &Numbers) -> Result<Waiting, String> {
    let all = functions(statements);
    let mut waiting = Waiting::new();
    for kernel in all.iter().filter(|one| one.is_kernel) {
        let graph = Graph::of(kernel, &all);
        let any = |what: &dyn Fn(&Instruction<'_>) -> bool| graph.nodes.iter().any(|node| what(&node.step.instruction));
        let stores = any(&|instruction| matches!(instruction.kind(), "st" | "red") && !instruction.in_space("shared"));
        let tells = any(&counts) || any(&polls) || stores && graph.nodes.iter().any(|node| node.step.goes_back());
        // Of a kernel that is not launched it is not known which arguments are numbers.
        let is_launched = numbers.is_empty() || numbers.contains_key(kernel.name);
        if Defence::LastBlockFences.stands() && is_launched && any(&leaving::leaves) {
            leaving::check(&graph)?;
        }
        let waits = any(&|instruction| instruction.kind() == "griddepcontrol");
        if !tells && !waits && !any(&is_unordered) {
            continue;
        }
        let facts = Facts::of(&graph, numbers.get(kernel.name));
        if Defence::LastBlockFences.stands() && is_launched {
            if any(&is_unordered) {
                unordered(&graph, &Facts::of_whole_addresses(&graph, numbers.get(kernel.name)))?;
            }
            if tells {
                unfenced(&graph, &facts)?;
            }
        }
        if !waits {
            continue;
        }
        if let Some(early) = waits::early(&graph, &facts) {
            let used = early | loaded_in_no_order(&graph, &facts);
            waiting
                .insert(kernel.name.to_owned(), used.places().take_while(|at| *at < kernel.parameters.len()).collect());
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
    let (forward, backward) = (graph.forward(), graph.backward());
    let written = stored.iter().fold(Origin::default(), |all, one| all | *one);
    let (loops, flows) = (loops(graph, &forward, &backward), flows(graph));
    let polled = (0..graph.nodes.len()).filter(|at| {
        let node = &graph.nodes[*at];
        polls(&node.step.instruction)
            || facts.surely_loaded(node.copy, &node.step.instruction).meets(written)
                && is_looked_at_again(graph, *at, &forward, &loops, &flows)
    });
    let polled = polled.fold(Origin::default(), |all, at| all | loaded[at]);
    // A flag that is only stored to is not what it tells of.
    let flag = |at: usize| match graph.nodes[at].step.instruction.kind() {
        "atom" if !stored[at].is_empty() => Some(Origin::default()),
        "red" if stored[at].meets(polled) => Some(Origin::default()),
        "st" if stored[at].meets(polled) => Some(stored[at]),
        _ => None,
    };
    let flags: Vec<(usize, Origin)> = (0..graph.nodes.len()).filter_map(|at| Some((at, flag(at)?))).collect();
    if flags.is_empty() {
        return Ok(());
    }
    let meetings = Meetings::of(graph, facts, &stored, &forward);
    let ordered: Vec<bool> = graph.nodes.iter().map(|node| orders(&node.step.instruction)).collect();
    let (mut bare, mut good) = (Origin::default(), Origin::default());
    let (mut unmet, mut met) = (Origin::default(), Origin::default());
    for (at, flag) in flags {
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
        let alone = meetings.not_met(graph, at, &backward);
        unmet = unmet | (gather(&stored, &alone) & later).without(flag);
        met = met | before.without(gather(&stored, &alone));
    }
    if !unmet.without(met).is_empty() {
        return Err(format!(
            "one thread of `{}` counts its block (or raises a flag) though other threads of the block may not have stored yet \
             what the count tells of: put __syncthreads() (or __syncwarp() in one warp) between their stores and the atomic",
            graph.kernel.name
        ));
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

/// Refuses a kernel that loads what it stores to as if nobody did.
fn unordered<'a>(graph: &Graph<'_, 'a>, facts: &Facts<'a>) -> Result<(), String> {
    let all = || graph.nodes.iter().map(|node| (node.copy, &node.step.instruction));
    let stored = all().fold(Origin::default(), |sum, (copy, one)| sum | facts.surely_stored(copy, one));
    let loads = all().filter(|(_, one)| is_unordered(one));
    let loaded = loads.fold(Origin::default(), |sum, (copy, one)| sum | facts.surely_loaded(copy, one));
    if (loaded & stored & Origin::PARAMETERS).is_empty() {
        return Ok(());
    }
    Err(format!(
        "`{}` loads by a way for what nobody writes (ld.global.nc, __ldg, or `const` with `__restrict__`) from a buffer that it also \
         stores to: what it gets may be stale; load it as any other memory",
        graph.kernel.name
    ))
}

/// What is loaded by a way that no order of memory reaches. No wait orders it either: the compiler may ask for it before, and what a multiprocessor
/// has of it from an earlier launch may be stale.
fn loaded_in_no_order<'a>(graph: &Graph<'_, 'a>, facts: &Facts<'a>) -> Origin {
    let loads = graph.nodes.iter().filter(|node| is_unordered(&node.step.instruction));
    loads.fold(Origin::default(), |sum, node| sum | facts.loaded(node.copy, &node.step.instruction))
}

/// Whether it loads by a way that no order of memory reaches.
fn is_unordered(instruction: &Instruction<'_>) -> bool {
    matches!(instruction.kind(), "ld" | "ldu" | "tex" | "tld4" | "suld")
        && (instruction.has("nc") || instruction.kind() != "ld")
}

/// The loops of a kernel: for each way back what lies on it.
fn loops(graph: &Graph<'_, '_>, forward: &[Vec<usize>], backward: &[Vec<usize>]) -> Vec<Vec<bool>> {
    let back = |at: usize| forward[at].iter().filter(move |next| **next <= at).map(move |next| (at, *next));
    let all = (0..graph.nodes.len()).filter(|at| graph.nodes[*at].step.goes_back()).flat_map(back);
    all.map(|(end, start)| {
        let mut within = match end == start {
            true => vec![false; graph.nodes.len()],
            false => graph.reach(end, backward, |node| node != start),
        };
        (within[end], within[start]) = (true, true);
        within
    })
    .collect()
}

/// Whether a load stands in a loop that is left for what it gives: whoever writes there is waited for.
fn is_looked_at_again<'a>(
    graph: &Graph<'_, 'a>,
    at: usize,
    forward: &[Vec<usize>],
    loops: &[Vec<bool>],
    flows: &HashMap<(usize, &'a str), Vec<&'a str>>,
) -> bool {
    let node = &graph.nodes[at];
    if !matches!(node.step.instruction.kind(), "ld" | "ldu") || !loops.iter().any(|within| within[at]) {
        return false;
    }
    // All that is computed from what it gives, in the same function.
    let mut left: Vec<&str> = tokens(node.step.instruction.split().0).collect();
    let mut given: BTreeSet<&str> = left.iter().copied().collect();
    while let Some(name) = left.pop() {
        let from = flows.get(&(node.copy, name)).into_iter().flatten();
        left.extend(from.filter(|name| given.insert(name)));
    }
    let decides = |branch: usize| {
        let other = &graph.nodes[branch];
        other.copy == node.copy && other.step.guard.is_some_and(|guard| tokens(guard).any(|name| given.contains(name)))
    };
    let leaves = |within: &[bool], branch: usize| within[branch] && forward[branch].iter().any(|next| !within[*next]);
    (0..graph.nodes.len())
        .filter(|branch| decides(*branch))
        .any(|branch| loops.iter().any(|within| within[at] && leaves(within, branch)))
}

/// Where some threads of a block part from the others by their number.
struct Meetings {
    /// Nodes behind a condition on a thread's number.
    threads: Vec<bool>,
    /// Those of them where a way parts, each with the nodes that only some of its ways lead to.
    partings: Vec<(usize, Vec<bool>)>,
    /// Whether threads that come behind it know that others came there.
    meets: Vec<bool>,
    /// Whether it stores to the device's memory.
    stores: Vec<bool>,
}

impl Meetings {
    fn of<'a>(graph: &Graph<'_, 'a>, facts: &Facts<'a>, stored: &[Origin], forward: &[Vec<usize>]) -> Self {
        let told = |node: &Node<'_, 'a>| {
            node.step.guard.is_some_and(|guard| facts.condition(node.copy, guard) == Condition::Threads)
        };
        let threads: Vec<bool> = graph.nodes.iter().map(told).collect();
        let chosen = |parting: usize| {
            let leads = |next: &usize| {
                let mut reached = graph.reach(*next, forward, |node| node != parting);
                reached[*next] = true;
                reached
            };
            let ways: Vec<Vec<bool>> = forward[parting].iter().map(leads).collect();
            let some = |node: usize| ways.iter().any(|way| way[node]) && !ways.iter().all(|way| way[node]);
            (parting, (0..graph.nodes.len()).map(some).collect())
        };
        let parts = (0..graph.nodes.len()).filter(|at| threads[*at] && forward[*at].len() > 1);
        Self {
            partings: parts.map(chosen).collect(),
            threads,
            meets: graph.nodes.iter().map(waits::follows).collect(),
            stores: stored.iter().map(|stored| !stored.is_empty()).collect(),
        }
    }

    /// Where the threads that come to a node have parted from others, or the node itself behind a condition of its own.
    fn partings(&self, at: usize) -> impl Iterator<Item = usize> {
        let parted = self.partings.iter().filter(move |(_, chosen)| chosen[at]).map(|(parting, _)| *parting);
        parted.chain(self.threads[at].then_some(at))
    }

    /// What other threads of a block may have come to before only some of them come to `at`, without having met in between.
    fn not_met(&self, graph: &Graph<'_, '_>, at: usize, backward: &[Vec<usize>]) -> Vec<bool> {
        let mut before = vec![false; graph.nodes.len()];
        let unmet = |from: usize| graph.reach(from, backward, |node| !self.meets[node]);
        let since = unmet(at);
        let partings: Vec<usize> = self.partings(at).collect();
        for parting in partings.iter().filter(|parting| **parting == at || since[**parting] && !self.meets[**parting]) {
            for (node, reached) in unmet(*parting).into_iter().enumerate() {
                before[node] |= reached && !self.meets[node];
            }
        }
        // What the same threads do alone may be what they tell of.
        for (node, before) in before.iter_mut().enumerate().filter(|(_, before)| **before) {
            let own = |one: usize| partings.iter().any(|other| one == *other || tells_the_same(graph, one, *other));
            *before = self.stores[node] && !self.partings(node).any(own);
        }
        before
    }
}

/// Whether two nodes stand behind the same condition, as far as that can be seen.
fn tells_the_same(graph: &Graph<'_, '_>, one: usize, other: usize) -> bool {
    let comparison = |at: usize| {
        let node = &graph.nodes[at];
        let guard = node.step.guard.unwrap_or_default().trim_start_matches('!');
        let gives = |other: &&Node<'_, '_>| {
            let instruction = &other.step.instruction;
            other.copy == node.copy
                && instruction.kind() != "st"
                && tokens(instruction.target).any(|name| name == guard)
        };
        let given = graph.nodes.iter().filter(gives).map(|node| &node.step.instruction);
        let given: BTreeSet<(&str, &str)> =
            given.map(|instruction| (instruction.kind(), instruction.sources)).collect();
        (node.copy, guard, given)
    };
    let (one, other) = (comparison(one), comparison(other));
    // Whoever is elected is the same thread of a warp each time.
    let elected = |given: &BTreeSet<(&str, &str)>| given.iter().any(|(kind, _)| *kind == "elect");
    (one.0, one.1) == (other.0, other.1)
        || one.2.len() == 1 && one.2 == other.2 && one.0 == other.0
        || elected(&one.2)
        || elected(&other.2)
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

    const LAST: &str = ".visible .entry k(\n.param .u64 k_param_0,\n.param .u64 k_param_1\n)\n{\n.reg .pred %p<9>; .reg .b32 %r<10>; .reg .f32 %f<9>; .reg .b64 %rd<10>; .shared .b64 part[8];\n\
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
        ptx::check(&LAST.replace("st.global.f32 [%rd3]", "st.shared.f32 [part]")).unwrap();
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

    const COUNT: &str = ".func (.param .b32 func_retval0) count(.param .b64 count_param_0)\n{\n.reg .pred %p<9>; .reg .b32 %r<10>; .reg .f32 %f<9>; .reg .b64 %rd<10>;\n\
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

    #[test]
    fn whatever_an_address_goes_through_it_is_one() {
        for through in [
            "not.b64 %rd5, %rd3;\nnot.b64 %rd5, %rd5",
            "xor.b64 %rd5, %rd3, 5;\nxor.b64 %rd5, %rd5, 5",
            "mov.b64 {%r2, %r3}, %rd3;\nmov.b64 %rd5, {%r2, %r3}",
            "shfl.sync.idx.b32 %r2|%p2, %rd3, 0, 31, -1;\ncvt.u64.u32 %rd5, %r2",
            // By way of memory.
            "st.local.u64 [%rd8], %rd3;\nld.local.u64 %rd5, [%rd8]",
            "st.shared.u64 [part], %rd3;\nld.shared.u64 %rd5, [part]",
            // Nobody knows whose.
            "mov.b64 %rd5, %rd7",
        ] {
            let text = LAST.replace("st.global.f32 [%rd3]", &format!("{through};\nst.global.f32 [%rd5]"));
            let bare = ptx::check(&text.replace("BEFORE", "bar.sync 0").replace("AFTER", "bar.sync 0"));
            assert!(bare.unwrap_err().contains("no fence orders the two"), "{through}");
            ptx::check(&text.replace("BEFORE", "membar.gl").replace("AFTER", "bar.sync 0")).unwrap();
        }
    }

    #[test]
    fn a_number_from_an_address_is_none() {
        // How far a row is from the next aligned piece, beside another buffer.
        for number in [
            "and.b64 %rd5, %rd3, 15",
            "cvt.u32.u64 %r5, %rd3;\nshl.b32 %r6, %r5, 30;\nshr.s32 %r7, %r6, 31;\ncvt.u64.u32 %rd5, %r7",
        ] {
            let text = LAST.replace("add.s64 %rd4, %rd3, 4", &format!("{number};\nadd.s64 %rd4, %rd2, %rd5"));
            ptx::check(&text.replace("BEFORE", "bar.sync 0").replace("AFTER", "bar.sync 0")).unwrap();
        }
    }

    #[test]
    fn a_flag_that_ordinary_loads_wait_for_is_polled() {
        let flags = LAST.replace("atom.global.add.u32 %r1, [%rd2], 1", "st.global.cg.u32 [%rd2], 1");
        let loads = "$L2: ld.global.cg.u32 %r1, [%rd2];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 bra $L2";
        let poll = flags.replace("AFTER", loads);
        assert!(ptx::check(&poll.replace("BEFORE", "bar.sync 0")).unwrap_err().contains("no fence orders the two"));
        ptx::check(&poll.replace("BEFORE", "membar.gl")).unwrap();
        // Within a loop over rows as well.
        let rows = poll.replace("$L2:", "$L3: add.s32 %r4, %r4, 1;\n$L2:").replace("$L1:", "@%p3 bra $L3;\n$L1:");
        assert!(ptx::check(&rows.replace("BEFORE", "bar.sync 0")).is_err());
        // A loop that something else ends is no waiting.
        let other = poll.replace("setp.eq.u32 %p2, %r1, 0", "setp.eq.u32 %p2, %r5, 0");
        ptx::check(&other.replace("BEFORE", "bar.sync 0")).unwrap();
    }

    #[test]
    fn what_is_stored_to_is_not_loaded_as_if_nobody_wrote() {
        let fenced = LAST.replace("BEFORE", "membar.gl").replace("AFTER", "membar.gl");
        for load in ["ld.global.nc.f32", "ld .global.L1::no_allocate .nc .f32", "ldu.global.f32"] {
            let error = ptx::check(&fenced.replace("ld.global.f32", load)).unwrap_err();
            assert!(error.contains("what it gets may be stale"), "{load}: {error}");
        }
        let input = fenced.replace("add.s64 %rd4, %rd3, 4;\nld.global", "ld.global.nc").replace("[%rd4]", "[%rd5]");
        ptx::check(
            &input
                .replace("cvta", "ld.param.u64 %rd5, [k_param_2];\ncvta")
                .replace("k_param_1\n", "k_param_1,\n.param .u64 k_param_2\n"),
        )
        .unwrap();
    }

    #[test]
    fn one_thread_counts_once_the_others_have_stored() {
        let one = "mov.u32 %r2, %tid.x;\nsetp.ne.u32 %p2, %r2, 0;\n@%p2 bra $L2";
        let text = LAST.replace("AFTER", "$L2: bar.sync 0");
        let error = |before: &str| ptx::check(&text.replace("BEFORE", before)).err();
        let alone = error(&format!("membar.gl;\n{one}")).unwrap();
        assert!(alone.contains("one thread of `k` counts its block"), "{alone}");
        assert_eq!(error(&format!("membar.gl;\nbar.sync 0;\n{one}")), None);
        assert_eq!(error(&format!("bar.sync 0;\n{one};\nmembar.gl")), None);
        assert_eq!(error(&format!("bar.warp.sync -1;\n{one};\nmembar.gl")), None);
        // The others part before, and those that count meet among themselves.
        assert_eq!(error(&format!("{one};\nbar.sync 1, 128;\nmembar.gl")), None);
        // A warp's first lane stores, and a block's first thread counts.
        let lanes = "mov.u32 %r3, %laneid;\nsetp.ne.u32 %p3, %r3, 0;\n@%p3 bra $L3;\nst.global";
        let lanes = text.replace("st.global", lanes).replace("BEFORE", &format!("$L3: membar.gl;\nMEET;\n{one}"));
        assert!(ptx::check(&lanes.replace("MEET", "membar.gl")).is_err());
        ptx::check(&lanes.replace("MEET", "bar.sync 0")).unwrap();
        // All of them count, or it is what one thread stored.
        assert_eq!(error("membar.gl"), None);
        let own = text.replace("st.global", &format!("{one};\nst.global")).replace("BEFORE", "membar.gl");
        ptx::check(&own).unwrap();
    }
}
