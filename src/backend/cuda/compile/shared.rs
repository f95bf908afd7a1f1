//! Shared memory is reached through the names of what is declared there.
//!
//! Below what a kernel is given lies a kilobyte of the system's (`sm_80` and later). A number for an address reaches it, and no launch
//! clears it: what one leaves behind there the next one finds. What is read here is where addresses come from, not how far they go.

use std::collections::HashSet;

use super::lexer::Statement;
use super::ptx::{Instruction, declared, instruction, kernel, parameters, tokens};

/// Instructions whose result is no address, whatever goes into it.
const TELLING: [&str; 9] = ["setp", "set", "isspacep", "testp", "vote", "match", "popc", "clz", "bfind"];

/// Instructions whose result comes from memory, where calls have their words too.
const FROM_MEMORY: [&str; 4] = ["ld", "ldu", "atom", "ldmatrix"];

/// A register, or a word of a call, of a function.
type Name<'a> = (usize, &'a str);

/// Refuses an address in shared memory that comes from none of the names declared there. Whatever comes from memory, or is handed to a
/// function or back, passes for one where one was ever put there.
///
/// # Errors
/// A sentence.
pub(super) fn check(statements: &[Statement<'_>]) -> Result<(), String> {
    let steps: Vec<Step<'_>> = statements.iter().filter(|statement| statement.head.is_none()).map(Step::of).collect();
    if steps.iter().all(|step| step.shared.is_empty()) {
        return Ok(());
    }
    let registers: HashSet<&str> = statements
        .iter()
        .filter(|one| instruction(one.text).starts_with(".reg"))
        .flat_map(|one| tokens(one.text))
        .collect();
    // A register of such a name hides it, in these braces or others.
    let names: HashSet<&str> =
        statements.iter().flat_map(|one| in_shared(one.text)).filter(|name| !registers.contains(name)).collect();
    let of_kernels: HashSet<&str> = statements.iter().flat_map(parameters).collect();
    let mut held: HashSet<Name<'_>> = HashSet::new();
    let mut in_memory = false;
    let is_held = |held: &HashSet<Name<'_>>, step: &Step<'_>, text: &str| {
        tokens(text).any(|token| names.contains(token) || held.contains(&(step.function, token)))
    };
    loop {
        let before = (held.len(), in_memory);
        for step in steps.iter().filter(|step| !step.kind.is_empty()) {
            let given = step.values.iter().any(|text| is_held(&held, step, text));
            let is_store = step.target.starts_with('[');
            in_memory |= given && (is_store || step.kind == "atom");
            let holds = match step.kind {
                _ if is_store => false,
                kind if TELLING.contains(&kind) => false,
                "ld" if step.of_param && tokens(step.sources).any(|token| of_kernels.contains(token)) => false,
                kind if FROM_MEMORY.contains(&kind) => in_memory,
                _ => given,
            };
            if holds {
                let registers =
                    tokens(step.target).filter(|token| !token.starts_with(|first: char| first.is_ascii_digit()));
                held.extend(registers.map(|token| (step.function, token)));
            }
        }
        if (held.len(), in_memory) == before {
            break;
        }
    }
    let nobody = |step: &&Step<'_>| step.shared.iter().any(|text| !is_held(&held, step, text));
    let Some(step) = steps.iter().find(nobody) else { return Ok(()) };
    let inside = statements.iter().find(|one| one.function == step.function && one.head.is_some());
    Err(format!(
        "{} reaches shared memory by an address that comes from nothing declared there; declare what it needs (`__shared__`, or `shared` in the launch plan)",
        inside.and_then(kernel).map_or_else(|| "a function".to_owned(), |name| format!("`{name}`"))
    ))
}

/// The names of variables in shared memory that a statement declares: inline assembler may declare several at once.
fn in_shared(statement: &str) -> impl Iterator<Item = &str> {
    let list = declared(statement, ".shared").and_then(|_| statement.split_once(".shared")).map(|(_, list)| list);
    list.into_iter().flat_map(|list| list.split(',')).filter_map(|one| tokens(one.split('[').next()?).last())
}

/// An instruction as far as it is of interest here.
struct Step<'a> {
    function: usize,
    kind: &'a str,
    target: &'a str,
    sources: &'a str,
    /// What stands outside of brackets in its sources: values, not addresses of what is loaded.
    values: Vec<&'a str>,
    of_param: bool,
    /// The texts of its addresses in shared memory.
    shared: Vec<&'a str>,
}

impl<'a> Step<'a> {
    fn of(statement: &Statement<'a>) -> Self {
        let instruction = Instruction::of(statement.text);
        let (target, sources) = instruction.split();
        let mut step = Self {
            function: statement.function,
            kind: instruction.kind(),
            target: target.trim_start(),
            sources,
            values: sources.split(']').filter_map(|text| text.split('[').next()).collect(),
            of_param: instruction.in_space("param"),
            shared: Vec::new(),
        };
        if step.kind.is_empty() || !instruction.in_space("shared") {
            return step;
        }
        let brackets = instruction.operands.split('[').skip(1).map(|text| text.split(']').next().unwrap_or_default());
        // Operands lie in the spaces that are named, in this order; behind them may come a barrier.
        let words = instruction.operation.split('.').map(|word| word.split("::").next().unwrap_or_default());
        let spaces: Vec<&str> = words.filter(|word| matches!(*word, "shared" | "global")).collect();
        step.shared = match step.kind {
            // Where an address is made of a number.
            "cvta" if !instruction.has("to") => vec![sources],
            "mapa" => vec![sources],
            _ if spaces.contains(&"global") => {
                let spaces = spaces.into_iter().chain(std::iter::repeat("shared"));
                brackets.zip(spaces).filter(|(_, space)| *space == "shared").map(|(text, _)| text).collect()
            }
            _ => brackets.collect(),
        };
        step
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::lexer::Text;
    use super::*;

    fn refused(body: &str) -> Option<String> {
        let text = format!(
            ".extern .shared .align 16 .b8 smem[];\n.visible .entry k(.param .u64 x, .param .u64 rows)\n{{\n\
             .shared .align 4 .b8 part[128];\n.reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<9>; .reg .f32 %f<9>;\n{body};\nret;\n}}"
        );
        check(&Text::of(&text).unwrap().statements()).err()
    }

    /// The same of a function that loads from what it is handed.
    fn refused_in_a_call(handed: &str) -> Option<String> {
        let text = format!(
            ".extern .shared .align 16 .b8 smem[];\n\
             .func (.param .b32 back) called(.param .b64 at)\n{{\n.reg .b64 %rd<9>; .reg .f32 %f<9>;\n\
             ld.param.b64 %rd1, [at]; ld.shared.f32 %f1, [%rd1]; st.param.f32 [back], %f1; ret;\n}}\n\
             .visible .entry k(.param .u64 x)\n{{\n.reg .b64 %rd<9>; .reg .f32 %f<9>;\nmov.u64 %rd1, {handed};\n\
             {{ .param .b64 param0; st.param.b64 [param0], %rd1; .param .b32 retval0; call (retval0), called, (param0); ld.param.f32 %f1, [retval0]; }}\nret;\n}}"
        );
        check(&Text::of(&text).unwrap().statements()).err()
    }

    #[test]
    fn what_a_function_is_handed_is_what_was_put_there() {
        assert_eq!(refused_in_a_call("smem"), None);
        assert!(refused_in_a_call("64").unwrap().starts_with("a function reaches shared memory"));
    }

    #[test]
    fn what_is_declared_may_be_reached_in_any_way() {
        for honest in [
            "ld.shared.f32 %f1, [part+4]; st.shared.v4.f32 [smem], {%f1, %f1, %f1, %f1}",
            "mov.u32 %r1, smem; add.s32 %r2, %r1, 1023; and.b32 %r3, %r2, -1024; mad.lo.s32 %r4, %r5, 4, %r3; st.shared.f32 [%r4+8], %f1",
            "mov.u64 %rd1, part; cvta.shared.u64 %rd2, %rd1; cvta.to.shared.u64 %rd3, %rd2; ld.shared.u32 %r1, [%rd3]",
            "mov.u32 %r1, part; mapa.shared::cluster.u32 %r2, %r1, 1; ld.shared::cluster.u32 %r3, [%r2]",
            "mov.u32 %r1, smem; cp.async.cg.shared.global [%r1], [%rd1], 16",
            "mov.u32 %r1, smem; cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [x, {%r2, %r3}], [%r1]",
            "mov.u32 %r1, smem; tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%r1], 128",
            ".shared .b64 full[4], empty[4]; mbarrier.init.shared::cta.b64 [full], 1; mbarrier.init.shared::cta.b64 [empty+8], 1",
            "mov.u32 %r1, part; atom.shared.exch.b32 %r2, [smem], %r1; ld.shared.u32 %r3, [%r2]",
            "mov.u64 %rd1, part; st.local.u64 [%rd8], %rd1; ld.local.u64 %rd2, [%rd7]; ld.shared.u32 %r1, [%rd2]",
            "@%p1 bra $L; mov.u32 %r1, 5; $L: st.global.u32 [%rd1], %r1",
            "ld.param.u64 %rd1, [x]; ld.global.u32 %r1, [%rd1]",
        ] {
            assert_eq!(refused(honest), None, "{honest}");
        }
    }

    #[test]
    fn an_address_that_comes_from_no_name_is_refused() {
        for dishonest in [
            "{ .reg .u32 a; mov.u32 a, 64; ld.shared.u32 %r1, [a]; }",
            "st.shared.u32 [64], %r1",
            "ld.param.u64 %rd1, [rows]; st.shared.u32 [%rd1], %r1",
            "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; atom.shared.add.u32 %r3, [%r2], 1",
            "mov.u64 %rd1, 64; cvta.shared.u64 %rd2, %rd1; ld.u32 %r1, [%rd2]",
            "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [64], 16",
            "{ .reg .u32 smem; mov.u32 smem, 64; ld.shared.u32 %r1, [smem]; }",
            "mov.u32 %r1, part; bar.sync 8, %r1; ld.shared.u32 %r2, [8]",
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [part], %r2, [part]; ld.local.u32 %r3, [%rd1]; ld.shared.u32 %r4, [%r3]",
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [part], [%rd1], 16, [64]",
            "cp.async.ca.shared.global [%r1], [%rd1], 4",
            "mov.u32 %r1, part; setp.eq.u32 %p1, %r1, 0; selp.u32 %r2, 64, 68, %p1; ld.shared.u32 %r3, [%r2]",
        ] {
            let why = refused(dishonest).unwrap_or_default();
            assert!(why.starts_with("`k` reaches shared memory"), "{dishonest}: {why}");
        }
    }
}
