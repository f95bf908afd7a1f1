//! Results that leave by the copy engine: whether it has read shared memory before that is written again.
//!
//! A copy from shared memory to the device's (`cp.async.bulk` with a `bulk_group`) is still reading while the kernel goes on. Whoever writes
//! there in the next turn of a loop waits for it first (`cp.async.bulk.wait_group.read`); a wait behind the loop comes too late. Which
//! memory is written is not followed: a loop in which shared memory is written by ordinary stores and leaves, and nothing waits, is refused.

use super::flow::Graph;
use super::ptx::Instruction;

/// Whether an instruction has the copy engine store what lies in shared memory.
pub(super) fn leaves(instruction: &Instruction<'_>) -> bool {
    instruction.kind() == "cp" && instruction.has("bulk") && instruction.has("bulk_group")
}

/// Whether it waits for such copies.
fn waits(instruction: &Instruction<'_>) -> bool {
    instruction.kind() == "cp" && instruction.has("bulk") && instruction.has("wait_group")
}

fn writes_shared(instruction: &Instruction<'_>) -> bool {
    let writes = match instruction.kind() {
        "st" | "stmatrix" | "red" | "atom" => true,
        "wmma" => instruction.has("store"),
        _ => false,
    };
    writes && instruction.in_space("shared")
}

/// Refuses a kernel with a loop that fills shared memory anew from which a copy may still be reading.
///
/// # Errors
/// A sentence that says what to write.
pub(super) fn check(graph: &Graph<'_, '_>) -> Result<(), String> {
    let (forward, backward) = (graph.forward(), graph.backward());
    for at in (0..graph.nodes.len()).filter(|at| leaves(&graph.nodes[*at].step.instruction)) {
        let (after, before) = (graph.reach(at, &forward, |_| true), graph.reach(at, &backward, |_| true));
        // All that lies on a way from it back to it.
        let again = || (0..graph.nodes.len()).filter(|node| after[*node] && before[*node]);
        let any = |what: fn(&Instruction<'_>) -> bool| again().any(|node| what(&graph.nodes[node].step.instruction));
        if any(writes_shared) && !any(waits) {
            return Err(format!(
                "`{}` writes shared memory in a loop from which the copy engine may still be storing what the turn before left there: wait \
                 for it first (cp.async.bulk.wait_group.read, or wait_for_stores<N>() of ws/hopper.cuh)",
                graph.kernel.name
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::ptx;

    /// What is said of a kernel of which this is the body.
    fn error(body: &str) -> Option<String> {
        let head = ".visible .entry k(\n.param .u64 k_param_0\n)\n{\n.reg .pred %p<9>; .reg .b32 %r<10>; .reg .b64 %rd<10>; .shared .align 8 .b8 part[64];\nld.param.u64 %rd1, [k_param_0];\n";
        ptx::check(&format!("{head}{body}\nret;\n}}")).err()
    }

    const WRITE: &str = "st.shared.b32 [part], %r2;";
    const STORE: &str = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r3, %r4}], [part];\ncp.async.bulk.commit_group;";
    const WAIT: &str = "cp.async.bulk.wait_group.read 0;";

    #[test]
    fn a_loop_that_fills_what_still_leaves_is_refused() {
        let why = error(&format!("$L: {WRITE}\n{STORE}\n@%p1 bra $L;\n{WAIT}")).unwrap();
        assert!(why.contains("`k` writes shared memory") && why.contains("wait_group.read"), "{why}");
        assert!(error(&format!("$L: {WRITE}\n{}\n@%p1 bra $L;\n{WAIT}", STORE.replace("tensor.2d.", ""))).is_some());
    }

    #[test]
    fn one_that_waits_or_writes_nothing_is_not() {
        assert_eq!(error(&format!("$L: {WAIT}\n{WRITE}\n{STORE}\n@%p1 bra $L;\n{WAIT}")), None);
        assert_eq!(error(&format!("$L: @%p2 {WAIT}\nbar.sync 0;\n{WRITE}\n{STORE}\n@%p1 bra $L;\n{WAIT}")), None);
        assert_eq!(error(&format!("{WRITE}\n$L: {STORE}\n@%p1 bra $L;\n{WAIT}")), None);
        assert_eq!(error(&format!("$L: {WRITE}\n@%p1 bra $L;\n{STORE}\n{WAIT}")), None);
    }
}
