//! Kernels that may begin before the launch in front of them has ended: what they use before they have waited for it.
//!
//! A wait that stands behind a condition may never come. So all ways through a kernel are looked at, and a condition that
//! depends on nothing but a thread's number is taken for what it is: some threads go one way, the others another, and those that
//! meet them at a barrier afterwards have waited too. A number in a cluster tells blocks apart, whom only a barrier of the cluster
//! (or one in shared memory, which may be another block's) makes meet.

use super::facts::{Condition, Facts, Origin};
use super::flow::{Graph, Node};

/// The parameters whose memory some way uses before it has met a wait; `None` where a launch may end without one.
pub(super) fn early<'a>(graph: &Graph<'_, 'a>, facts: &Facts<'a>) -> Option<Origin> {
    let ways = Ways { graph, facts, forward: graph.forward() };
    let waits: Vec<usize> = (0..graph.nodes.len()).filter(|at| waits(&graph.nodes[*at])).collect();
    // Whoever never waits is not asked which way.
    waits.first()?;
    let in_time = ways.sure(&[Condition::Threads, Condition::Cluster, Condition::Numbers], false);
    if !in_time.first().copied().unwrap_or(false) {
        return None;
    }
    Some(ways.used(&ways.sure(&[Condition::Threads, Condition::Cluster], true)))
}

/// Whether an instruction waits.
fn waits(node: &Node<'_, '_>) -> bool {
    node.step.instruction.kind() == "griddepcontrol" && node.step.instruction.has("wait")
}

/// Whether all threads of a block meet there.
pub(super) fn is_meeting(node: &Node<'_, '_>) -> bool {
    let instruction = &node.step.instruction;
    matches!(instruction.kind(), "bar" | "barrier") && !instruction.has("arrive") && !instruction.has("warp")
}

/// Whether a thread is past it only once another one came to it or to something like it.
pub(super) fn follows(node: &Node<'_, '_>) -> bool {
    let instruction = &node.step.instruction;
    is_meeting(node)
        || watches(node)
        || (instruction.kind() == "bar" && instruction.has("warp") && instruction.has("sync"))
}

/// The same of threads of another block of the cluster.
fn follows_others(node: &Node<'_, '_>) -> bool {
    watches(node) || is_meeting(node) && node.step.instruction.has("cluster")
}

/// Whether it waits for a barrier in shared memory, which threads of other blocks may come to as well.
fn watches(node: &Node<'_, '_>) -> bool {
    let instruction = &node.step.instruction;
    instruction.kind() == "mbarrier" && (instruction.has("try_wait") || instruction.has("test_wait"))
}

/// Who waits while a thread has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Others {
    Nobody,
    /// Threads of its block.
    InBlock,
    /// Threads of its block, or of another one of the cluster.
    InCluster,
}

impl Others {
    fn told_by(condition: Option<Condition>) -> Self {
        match condition {
            Some(Condition::Threads) => Self::InBlock,
            Some(Condition::Cluster) => Self::InCluster,
            _ => Self::Nobody,
        }
    }
}

struct Ways<'g, 'f, 'a> {
    graph: &'g Graph<'f, 'a>,
    facts: &'g Facts<'a>,
    forward: Vec<Vec<usize>>,
}

impl Ways<'_, '_, '_> {
    /// What decides where a node goes on, where that is not given.
    fn condition(&self, at: usize) -> Option<Condition> {
        let node = &self.graph.nodes[at];
        node.step.guard.map(|guard| self.facts.condition(node.copy, guard))
    }

    /// From which nodes on a wait is sure to come: in some thread where one of `tell` decides the way, else whatever way is
    /// taken. Where `before_meetings`, it comes before the threads of a block meet.
    fn sure(&self, tell: &[Condition], before_meetings: bool) -> Vec<bool> {
        let nodes = &self.graph.nodes;
        let told = |at: usize| self.condition(at).is_some_and(|condition| tell.contains(&condition));
        let waits: Vec<bool> =
            (0..nodes.len()).map(|at| waits(&nodes[at]) && (nodes[at].step.guard.is_none() || told(at))).collect();
        // Where threads part, a loop that only some of them leave does not count as waiting: a wait must lie ahead.
        let ahead: Vec<Option<Vec<bool>>> = (0..nodes.len())
            .map(|at| {
                let parts = nodes[at].next.len() > 1 && told(at);
                parts.then(|| {
                    let leads = |next: &usize| {
                        let reached = self.graph.reach(*next, &self.forward, |node| node != at);
                        waits[*next] || (0..nodes.len()).any(|node| reached[node] && waits[node])
                    };
                    nodes[at].next.iter().map(leads).collect()
                })
            })
            .collect();
        let mut sure = vec![true; nodes.len()];
        loop {
            let mut changed = false;
            for at in (0..nodes.len()).rev().filter(|at| !waits[*at]) {
                let next = &nodes[at].next;
                let now = match &ahead[at] {
                    _ if next.is_empty() || (before_meetings && is_meeting(&nodes[at])) => false,
                    Some(ahead) => next.iter().zip(ahead).any(|(next, ahead)| *ahead && sure[*next]),
                    None => next.iter().all(|next| sure[*next]),
                };
                changed |= sure[at] && !now;
                sure[at] &= now;
            }
            if !changed {
                return sure;
            }
        }
    }

    /// What is used before a wait, where `sure` says from which nodes on one comes in some thread of the block.
    fn used(&self, sure: &[bool]) -> Origin {
        let nodes = &self.graph.nodes;
        // By node: reached without a wait, and the same while others wait.
        let mut seen = vec![[false; 3]; nodes.len()];
        let mut left = vec![(0, Others::Nobody)];
        let mut used = Origin::default();
        while let Some((at, others)) = left.pop() {
            if std::mem::replace(&mut seen[at][others as usize], true) {
                continue;
            }
            let node = &nodes[at];
            let told = Others::told_by(self.condition(at));
            let mut others_wait = others;
            if waits(node) {
                match node.step.guard {
                    None => continue,
                    Some(_) => others_wait = others_wait.max(told),
                }
            }
            match others {
                Others::InBlock if follows(node) => continue,
                Others::InCluster if follows_others(node) => continue,
                _ => {}
            }
            let instruction = &node.step.instruction;
            used = used | self.facts.loaded(node.copy, instruction) | self.facts.stored(node.copy, instruction);
            if node.next.len() > 1 && node.next.iter().any(|next| sure[*next]) {
                others_wait = others_wait.max(told);
            }
            left.extend(node.next.iter().map(|next| (*next, others_wait)));
        }
        used
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::ptx;

    const DEPENDENT: &str = ".visible .entry k(\n.param .u64 k_param_0,\n.param .u64 k_param_1,\n.param .u32 k_param_2\n)\n{\n\
        .reg .pred %p<9>; .reg .b32 %r<10>; .reg .f32 %f<9>; .reg .b64 %rd<10>;\nld.param.u64 %rd1, [k_param_0];\nld.param.u64 %rd2, [k_param_1];\nld.param.u32 %r2, [k_param_2];\n\
        mov.u32 %r1, %tid.x;\nshr.u32 %r3, %r1, 5;\nsetp.ne.s32 %p1, %r3, 0;\nsetp.ge.s32 %p2, %r2, 0;\n\
        WAIT;\nld.global.f32 %f1, [%rd1];\nst.global.f32 [%rd2], %f1;\nret;\n}";

    /// What is used before, if it waits at all.
    fn used(wait: &str) -> Option<Vec<usize>> {
        let waiting = ptx::check(&DEPENDENT.replace("WAIT", wait)).unwrap().waiting;
        waiting.get("k").map(|used| used.iter().copied().collect())
    }

    #[test]
    fn a_wait_on_every_way_is_one() {
        assert_eq!(used("griddepcontrol.wait"), Some(vec![]));
        assert_eq!(used("@%p2 bra $A;\ngriddepcontrol.wait;\nbra $B;\n$A: griddepcontrol.wait;\n$B:"), Some(vec![]));
        assert_eq!(used("ld.global.f32 %f2, [%rd2];\ngriddepcontrol.wait"), Some(vec![1]));
        assert_eq!(used("griddepcontrol.wait;\nld.global.f32 %f2, [%rd1]"), Some(vec![]));
        // No wait orders what is loaded as if nobody wrote there.
        assert_eq!(used("griddepcontrol.wait;\nld.global.nc.f32 %f2, [%rd1]"), Some(vec![0]));
        // Something is fetched before, in a loop.
        assert_eq!(used("$A: add.s32 %r4, %r4, 1;\n@%p2 bra $A;\ngriddepcontrol.wait"), Some(vec![]));
    }

    #[test]
    fn a_wait_behind_what_launches_have_in_common_is_none() {
        assert_eq!(used("@%p2 bra $A;\ngriddepcontrol.wait;\n$A:"), None);
        assert_eq!(used("@%p2 griddepcontrol.wait"), None);
        assert_eq!(used("@%p2 bra $A;\ngriddepcontrol.wait;\n$A: bar.sync 0"), None);
        // Nor one behind both.
        assert_eq!(used("@%p1 bra $A;\n@%p2 bra $A;\ngriddepcontrol.wait;\n$A: bar.sync 0"), None);
        assert_eq!(used("bar.sync 0"), None);
    }

    #[test]
    fn one_warp_may_wait_for_all_that_meet_it_at_a_barrier() {
        assert_eq!(used("@%p1 bra $A;\ngriddepcontrol.wait;\n$A: bar.sync 0"), Some(vec![]));
        assert_eq!(used("@%p1 bra $A;\ngriddepcontrol.wait;\n$A: mbarrier.try_wait.b64 %p3, [%r9], 0"), Some(vec![]));
        assert_eq!(used("@%p1 bra $A;\ngriddepcontrol.wait;\n$A:"), Some(vec![0, 1]));
        // It waits when they have gone on.
        assert_eq!(used("@%p1 bra $A;\nbar.sync 0;\ngriddepcontrol.wait;\nret;\n$A: bar.sync 0"), Some(vec![0, 1]));
    }

    #[test]
    fn a_wait_in_a_function_is_one() {
        let wait = ".func pause()\n{\ngriddepcontrol.wait;\nret;\n}\n";
        let text = DEPENDENT.replace("WAIT", "call.uni pause");
        assert!(ptx::check(&format!("{wait}{text}")).unwrap().waiting["k"].is_empty());
        let sometimes = wait.replace("griddepcontrol.wait", ".reg .pred %p<2>;\n@%p1 ret;\ngriddepcontrol.wait");
        assert!(!ptx::check(&format!("{sometimes}{text}")).unwrap().waiting.contains_key("k"));
        let pointer =
            format!("{wait}.func other()\n{{\nret;\n}}\n{}", DEPENDENT.replace("WAIT", "call %rd7, (), prototype_0"));
        assert!(!ptx::check(&pointer).unwrap().waiting.contains_key("k"));
    }

    #[test]
    fn labels_of_inline_assembler_are_its_own() {
        let spin = "{\n.reg .pred p;\n$W: mbarrier.try_wait.b64 p, [%r9], 0;\n@p bra $D;\nbra $W;\n$D:\n}";
        let text = format!("{spin}\n@%p2 bra $E;\ngriddepcontrol.wait;\n$E: {spin}");
        assert_eq!(used(&text), None);
        assert_eq!(used(&format!("{spin}\ngriddepcontrol.wait;\n{spin}")), Some(vec![]));
    }

    #[test]
    fn a_block_of_a_cluster_waits_for_others_that_a_barrier_of_the_cluster_holds() {
        let rank = "mov.u32 %r4, %cluster_ctarank;\nsetp.ne.u32 %p3, %r4, 0;\n@%p3 bra $A;\ngriddepcontrol.wait;\n$A:";
        assert_eq!(used(&format!("{rank} bar.sync 0")), Some(vec![0, 1]));
        assert_eq!(used(&format!("{rank} barrier.cluster.arrive;\nbarrier.cluster.wait")), Some(vec![]));
        assert_eq!(used(&format!("{rank} mbarrier.try_wait.b64 %p4, [%r9], 0")), Some(vec![]));
        assert_eq!(
            used("setp.ne.u32 %p3, %r4, %cluster_ctarank;\n@!%p3 griddepcontrol.wait;\nbar.sync 0"),
            Some(vec![0, 1])
        );
    }

    #[test]
    fn a_wait_in_a_string_is_none_and_one_behind_a_line_number_is() {
        assert!(ptx::check(&DEPENDENT.replace("WAIT", ".pragma \";griddepcontrol.wait;\"")).is_err());
        assert_eq!(used(".loc 1 2 3\ngriddepcontrol .wait"), Some(vec![]));
    }
}
