//! Reading a kernel as text of the virtual machine, where macros, templates and inline assembler are all spelled out.
//!
//! Four things are refused here. *What tells launches or times apart*, and words beside the parameters ([`super::names`]). *Memory
//! that outlives a launch*: a variable in device memory may be a table that is only read, so every use of its address must be a load;
//! the same is asked of `__constant__` tables and of parameters, which a store through their generic address reaches. The proof is
//! simple, and refuses what it does not understand. *Results of other blocks read without an order* ([`super::ordering`]), and *shared
//! memory reached by a number* ([`super::shared`]). All readers see statements in one spelling ([`super::lexer`]).

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{Statement, Text};
use super::{names, ordering, shared};
use crate::defence::Defence;

/// Instructions that put an address computed from their operands into their first one.
const ARITHMETIC: [&str; 11] = ["mov", "cvta", "add", "sub", "mad", "shl", "or", "and", "cvt", "selp", "min"];

/// What a text is found to have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// Variables in device memory, all of them only read.
    pub tables: BTreeSet<String>,
    /// Kernels that wait for the launch before them, and the places of parameters that they use before.
    pub waiting: ordering::Waiting,
}

/// Places of a kernel's arguments that are numbers, by the kernel's name.
pub(super) type Numbers = BTreeMap<String, BTreeSet<usize>>;

/// Reads a text of which nothing is known.
///
/// # Errors
/// A sentence: what is refused.
#[cfg(test)]
pub(super) fn check(ptx: &str) -> Result<Reading, String> {
    read(ptx, &Numbers::new())
}

/// Reads a text; an address cannot come from one of the `numbers`.
///
/// # Errors
/// A sentence: what is refused.
pub(super) fn read(ptx: &str, numbers: &Numbers) -> Result<Reading, String> {
    let text = Text::of(ptx)?;
    let statements = text.statements();
    names::check(&statements)?;
    statements.iter().try_for_each(|statement| one_at_once(statement.text))?;
    let declared = |space| statements.iter().filter_map(move |statement| declared(statement.text, space));
    let mut known = BTreeMap::new();
    known.extend(declared(".global").map(|name| (name, Space::Device)));
    let tables = known.keys().map(|name| (*name).to_owned()).collect();
    if Defence::ConstantAddresses.stands() {
        known.extend(declared(".const").map(|name| (name, Space::Constant)));
        for statement in &statements {
            known.extend(parameters(statement).map(|name| (name, Space::Parameter)));
        }
    }
    only_read(&known, &statements)?;
    if Defence::SharedAddresses.stands() {
        shared::check(&statements)?;
    }
    let waiting = ordering::check(&statements, numbers)?;
    Ok(Reading { tables, waiting })
}

/// What must only be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    Device,
    Constant,
    Parameter,
}

impl Space {
    /// Whether an instruction may have an address of this as an operand, which it names or has in a register.
    fn takes(self, operation: &str, named: bool) -> bool {
        let mut words = operation.split('.');
        match words.next().unwrap_or_default() {
            // A load's first operand is where the value goes, and the value is no address.
            "prefetch" | "prefetchu" => true,
            // Beside parameters lie words of the driver's, so a load says how far it goes.
            "ld" | "ldu" => self != Self::Parameter || named,
            // The copy engine reads its maps from parameters.
            "cp" => self == Self::Parameter && words.any(|word| word == "tensor"),
            "fence" => self == Self::Parameter,
            _ => false,
        }
    }

    fn refusal(self, name: &str) -> String {
        match self {
            Self::Device => {
                format!("writable device memory that outlives a launch (`{name}`); tables belong in `__constant__`")
            }
            Self::Constant => format!(
                "the address of the constant `{name}` is used for more than loads, so it could be written to; read it by index"
            ),
            Self::Parameter => format!(
                "the address of a kernel's parameter (`{name}`) is used for more than loads and copies by tensor maps"
            ),
        }
    }
}

/// Words, with the signs that names of PTX may have.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%'))).filter(|token| !token.is_empty())
}

/// The name of the variable in `space` that a statement declares.
pub(super) fn declared<'a>(statement: &'a str, space: &str) -> Option<&'a str> {
    // In an instruction it is part of the operation: `ld.global.u32`. Of a parameter it says where that points: `.ptr .global`.
    let word = |at: usize| {
        let before = &statement[..at];
        !before.ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))
            && !before.trim_end().ends_with(".ptr")
    };
    let (at, _) = statement
        .match_indices(space)
        .find(|(at, found)| word(*at) && statement[at + found.len()..].starts_with(char::is_whitespace))?;
    let head = statement[at..].split(['=', '[', '<']).next()?;
    tokens(head).last()
}

/// Refuses several variables in one declaration, of which readers would know one.
fn one_at_once(statement: &str) -> Result<(), String> {
    let Some(name) = [".global", ".const"].iter().find_map(|space| declared(statement, space)) else { return Ok(()) };
    // A function's parameters may point there.
    if statement.contains(".entry ") || statement.contains(".func ") || statement.contains(".callprototype ") {
        return Ok(());
    }
    let (front, filling) = statement.split_once('=').unwrap_or((statement, ""));
    let (_, behind) = filling.rsplit_once('}').unwrap_or(("", filling));
    if front.contains([',', '<']) || behind.contains([',', '<']) {
        return Err(format!("several variables that outlive a launch are declared at once (`{name}`)"));
    }
    Ok(())
}

/// The name of the kernel whose head a statement is.
pub(super) fn kernel<'a>(statement: &Statement<'a>) -> Option<&'a str> {
    statement.head.filter(|(is_kernel, _)| *is_kernel).and_then(|(_, head)| tokens(head).next())
}

/// The parameters of the kernel whose head a statement is, in order.
pub(super) fn parameters<'a>(statement: &Statement<'a>) -> impl Iterator<Item = &'a str> + use<'a> {
    let list = statement.head.filter(|(is_kernel, _)| *is_kernel).and_then(|(_, head)| {
        let (_, list) = head.split_once('(')?;
        list.split_once(')').map(|(list, _)| list)
    });
    list.into_iter().flat_map(|list| list.split(',')).filter_map(|one| tokens(one.split('[').next()?).last())
}

/// How many parameters the kernel of this name declares in a text; 0 where it is not there.
pub(super) fn parameters_of(ptx: &str, name: &str) -> usize {
    let Ok(text) = Text::of(ptx) else { return 0 };
    text.statements()
        .iter()
        .find(|statement| kernel(statement) == Some(name))
        .map_or(0, |head| parameters(head).count())
}

/// What an instruction is: a name with its kinds, where it puts its result, and all else it names.
pub(super) struct Instruction<'a> {
    pub operation: &'a str,
    /// All that follows it.
    pub operands: &'a str,
    pub target: &'a str,
    pub sources: &'a str,
}

impl<'a> Instruction<'a> {
    pub(super) fn of(statement: &'a str) -> Self {
        let text = instruction(statement);
        let (operation, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let (target, sources) = operands.split_once(',').unwrap_or((operands, ""));
        Self { operation, operands, target: target.trim(), sources }
    }

    /// Where it puts its result, which may be several registers in braces, and all else it names.
    pub(super) fn split(&self) -> (&'a str, &'a str) {
        match self.operands.trim_start().strip_prefix('{').and_then(|inside| inside.split_once('}')) {
            Some(parts) => parts,
            None => (self.target, self.sources),
        }
    }

    /// Whether it is about this kind of memory, however that is spelled (`shared::cta`).
    pub(super) fn in_space(&self, space: &str) -> bool {
        self.operation.split('.').any(|word| word.split("::").next() == Some(space))
    }

    pub(super) fn kind(&self) -> &'a str {
        self.operation.split('.').next().unwrap_or_default()
    }

    pub(super) fn has(&self, kind: &str) -> bool {
        self.operation.split('.').any(|word| word == kind)
    }
}

/// Whether every use of the addresses of what is `known` is a load.
fn only_read(known: &BTreeMap<&str, Space>, statements: &[Statement<'_>]) -> Result<(), String> {
    // Registers that hold such an address, and whose.
    let mut held: BTreeMap<(usize, &str), &str> = BTreeMap::new();
    loop {
        let before = held.len();
        for statement in statements {
            let whose = |text: &str| {
                let name = |token| known.get_key_value(token).map(|(name, _)| *name);
                tokens(text).find_map(|token| name(token).or_else(|| held.get(&(statement.function, token)).copied()))
            };
            if let Some(name) = [".global", ".const"]
                .iter()
                .find_map(|space| declared(statement.text, space))
                .filter(|name| known.contains_key(name))
            {
                // Its own name and, in what it is filled with, another one's or its own again.
                let named: Vec<&str> = tokens(statement.text).filter(|token| known.contains_key(token)).collect();
                if named.len() > 1 {
                    let other = named.iter().find(|other| **other != name).copied().unwrap_or(name);
                    return Err(known[other].refusal(other));
                }
                continue;
            }
            if statement.head.is_some() {
                continue;
            }
            let instruction = Instruction::of(statement.text);
            let from_anywhere = Defence::ConstantAddresses.stands()
                && instruction.kind() == "cvta"
                && !instruction.has("to")
                && (instruction.has("const") || instruction.has("param"));
            let Some(name) = whose(statement.text) else {
                if from_anywhere {
                    return Err("an address among constants or parameters that is nobody's".into());
                }
                continue;
            };
            let arithmetic = ARITHMETIC.contains(&instruction.kind());
            match whose(instruction.sources) {
                _ if known[name].takes(instruction.operation, tokens(statement.text).any(|token| token == name)) => {}
                // What a register held is gone.
                None if arithmetic && !from_anywhere => {}
                Some(name)
                    if arithmetic && instruction.target.starts_with('%') && tokens(instruction.target).count() == 1 =>
                {
                    held.extend(tokens(instruction.target).map(|token| ((statement.function, token), name)));
                }
                _ => return Err(known[name].refusal(name)),
            }
        }
        if held.len() == before {
            return Ok(());
        }
    }
}

/// A statement without what may stand before an instruction: braces, labels, a guard.
pub(super) fn instruction(mut text: &str) -> &str {
    loop {
        text = text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '{' | '}'));
        if let Some(guard) = text.strip_prefix('@') {
            text = guard.split_once(char::is_whitespace).map_or("", |(_, rest)| rest);
            continue;
        }
        match text.split_once(':') {
            Some((label, rest)) if !label.is_empty() && tokens(label).count() == 1 && !label.contains([' ', '.']) => {
                text = rest;
            }
            _ => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TABLE: &str = ".version 9.0\n.target sm_90a\n\
        .global .align 4 .b8 table[8] = {0, 0, 128, 63, 0, 0, 0, 64};\n\
        .visible .entry k(\n.param .u64 k_param_0\n)\n{\n.reg .pred %p<9>; .reg .b32 %r<10>; .reg .f32 %f<9>; .reg .b64 %rd<10>;\n\
        mov.u64 \t%rd5, table;\nadd.s64 \t%rd7, %rd5, %rd6;\n$L__BB0_1:\n@%p1 ld.global.nc.f32 \t%f1, [%rd7];\n\
        st.global.f32 \t[%rd4], %f1;\nret;\n}\n";

    #[test]
    fn a_table_that_is_only_read_is_fine() {
        assert_eq!(check(TABLE).unwrap().tables.into_iter().collect::<Vec<_>>(), ["table"]);
        let direct = TABLE.replace("mov.u64 \t%rd5, table;", "ld.global.u32 %r1, [table+4];");
        check(&direct).unwrap();
    }

    #[test]
    fn a_parameter_that_points_to_device_memory_is_no_variable_in_it() {
        let pointer = TABLE.replace(".param .u64 k_param_0", ".param .u64 .ptr .global .align 1 k_param_0");
        assert_eq!(check(&pointer).unwrap().tables.into_iter().collect::<Vec<_>>(), ["table"]);
        assert_eq!(parameters_of(&pointer, "k"), 1);
        let written = pointer.replace("st.global.f32 \t[%rd4], %f1", "st.global.f32 [table], %f1");
        assert!(check(&written).unwrap_err().contains("`table`"));
        // Also where a variable is declared first of all in a kernel, behind a head that has such parameters.
        let inside = ".visible .entry k(\n.param .u64 .ptr .global .align 1 k_param_0\n)\n{\n\
            .global .u32 kept; st.global.u32 [kept], 5;\nret;\n}";
        assert!(check(inside).unwrap_err().contains("outlives a launch (`kept`)"));
    }

    #[test]
    fn memory_that_a_kernel_could_write_is_refused() {
        for (from, to) in [
            ("st.global.f32 \t[%rd4], %f1", "st.global.f32 \t[%rd7], %f1"),
            ("st.global.f32 \t[%rd4], %f1", "st.global.f32 [table], %f1"),
            ("st.global.f32 \t[%rd4], %f1", "st.global.u64 [%rd4], %rd7"),
            ("st.global.f32 \t[%rd4], %f1", "atom.global.add.u32 %r1, [table], 1"),
            ("st.global.f32 \t[%rd4], %f1", "red.global.add.u32 [%rd5], 1"),
            ("st.global.f32 \t[%rd4], %f1", "mov.b64 {%r1, %r2}, %rd7"),
            ("st.global.f32 \t[%rd4], %f1", "setp.eq.u64 %p2, %rd7, 5"),
            ("st.global.f32 \t[%rd4], %f1", "{ // asm\n .param .b64 param0; st.param.b64 [param0+0], %rd5"),
            ("st.global.f32 \t[%rd4], %f1", "mov.u64 %rd1, %rd7; L: st.u32 [%rd1], 4"),
            (".version", ".global .u64 p = generic(table); .version"),
        ] {
            let error = check(&TABLE.replace(from, to)).unwrap_err();
            assert!(error.contains("outlives a launch (`table`)"), "{to}: {error}");
        }
        let plain = ".global .align 4 .u32 counter;\n.visible .entry k()\n{\n.reg .pred %p<9>; .reg .b32 %r<10>; .reg .f32 %f<9>; .reg .b64 %rd<10>;\n\
            atom.global.add.u32 \t%r1, [counter], 1;\nret;\n}";
        assert!(check(plain).unwrap_err().contains("`counter`"));
        check(&plain.replace("atom.global.add.u32 \t%r1, [counter], 1;", "")).unwrap();
    }

    #[test]
    fn memory_declared_first_of_all_in_a_kernel_is_what_is_refused_not_its_parameters() {
        let ptx = ".visible .entry k(\n.param .u64 k_param_0,\n.param .u64 k_param_1\n)\n{\n\
            .global .u32 kept; st.global.u32 [kept], 5;\nret;\n}";
        assert!(check(ptx).unwrap_err().contains("outlives a launch (`kept`)"));
    }

    #[test]
    fn constants_and_parameters_are_only_read_too() {
        let constant = TABLE.replace(".global .align", ".const .align").replace("ld.global.nc", "ld.const");
        assert!(check(&constant).unwrap().tables.is_empty());
        let generic = constant.replace("add.s64 \t%rd7", "cvta.const.u64 \t%rd5, %rd5; add.s64 \t%rd7");
        check(&generic.replace("ld.const", "ld")).unwrap();
        let store = "st.global.f32 \t[%rd4], %f1";
        for (to, part) in [
            ("st.f32 [%rd7], %f1", "constant `table`"),
            ("st.u64 [%rd4], %rd5", "constant `table`"),
            ("atom.add.u32 %r1, [%rd7], 1", "constant `table`"),
            ("cvta.const.u64 %rd1, 0; st.f32 [%rd1], %f1", "nobody's"),
            ("cvta.param.u64 %rd1, %rd2; st.f32 [%rd1], %f1", "nobody's"),
            ("mov.b64 %rd1, k_param_0; cvta.param.u64 %rd2, %rd1; st.f32 [%rd2], %f1", "parameter (`k_param_0`)"),
            ("mov.b64 %rd1, k_param_0; cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16", "k_param_0"),
        ] {
            let error = check(&generic.replace(store, to)).unwrap_err();
            assert!(error.contains(part), "{to}: {error}");
        }
        for honest in [
            "ld.param.u64 %rd1, [k_param_0]; st.global.u64 [%rd1], %rd2",
            "mov.b64 %rd1, k_param_0; cvta.param.u64 %rd2, %rd1; prefetch.tensormap [%rd2]",
            ".shared .b64 part[8]; mov.b64 %rd1, k_param_0; cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier [part], [%rd1, {%r2, %r3}], [part]",
            ".shared .b64 part[8]; mov.b64 %rd1, k_param_0; cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r2, %r3}], [part]",
        ] {
            check(&generic.replace(store, honest)).unwrap();
        }
        let pointer = ".const .align 8 .u64 p = generic(table); .version";
        assert!(check(&TABLE.replace(".version", pointer)).unwrap_err().contains("`table`"));
    }

    #[test]
    fn registers_belong_to_their_function() {
        let other = ".visible .entry other()\n{\n.reg .pred %p<9>; .reg .b32 %r<10>; .reg .f32 %f<9>; .reg .b64 %rd<10>;\nst.global.f32 [%rd7], %f1;\nret;\n}";
        check(&format!("{TABLE}{other}")).unwrap();
    }

    #[test]
    fn several_variables_in_one_declaration_are_refused() {
        for declaration in [".global .u32 other, kept", ".global .u32 kept<2>", ".const .u32 a = 5, b"] {
            let error = check(&TABLE.replace("ret", &format!("{declaration}; red.global.add.u32 [kept], 1; ret")));
            assert!(error.unwrap_err().contains("declared at once"), "{declaration}");
        }
    }

    #[test]
    fn a_variable_is_known_behind_a_label_a_predicate_or_a_string_that_looks_like_a_function() {
        let written = "red.global.add.u32 [%rd5], 1; ret";
        for before in
            ["entry: ", ".reg .pred func; @func ", ".pragma \"nounroll\"; entry: entr: ", "/* .entry x() { */"]
        {
            let error = check(&TABLE.replace("ret", &format!("{before}{written}"))).unwrap_err();
            assert!(error.contains("outlives a launch (`table`)"), "{before}: {error}");
        }
        let string = TABLE.replace("ret", &format!(".pragma \"entry\"; {written}"));
        assert!(check(&string).unwrap_err().contains("a string in assembler"));
        // What stands behind a comment within a string is code.
        let hidden = TABLE.replace("ret", ".pragma \"//\"; mov.u64 %rd1, %globaltimer; ret");
        assert!(check(&hidden).unwrap_err().contains("a string in assembler"));
    }

    #[test]
    fn a_parameter_is_only_read_by_its_name() {
        for (load, part) in [
            ("mov.b64 %rd1, k_param_0; ld.param.u64 %rd2, [%rd1]", "read parameters by their names"),
            ("mov.b64 %rd1, k_param_0; cvta.param.u64 %rd2, %rd1; ld.u64 %rd3, [%rd2+-480]", "parameter (`k_param_0`)"),
            ("ld.param.u64 %rd2, [k_param_0+8]", "beside the parameter `k_param_0`, which has 8 bytes"),
        ] {
            let error = check(&TABLE.replace("ret", &format!("{load}; ret"))).unwrap_err();
            assert!(error.contains(part), "{load}: {error}");
        }
    }

    #[test]
    fn clocks_and_counters_are_refused_and_look_alikes_are_not() {
        for register in [
            "%clock",
            "%clock_hi",
            "%clock64",
            "%globaltimer",
            "%globaltimer_lo",
            "%pm0",
            "%pm7_64",
            "%gridid",
            "%envreg3",
        ] {
            assert!(check(&TABLE.replace("ret", &format!("mov.u64 %rd1, {register}; ret"))).is_err(), "{register}");
        }
        let alike = ".reg .b32 %clockwise, %pmx; mov.u32 %r1, %clockwise; mov.u32 %r2, %smid; mov.u32 %pmx, %tid.x; // %clock\n\
            /* %globaltimer */ ret";
        check(&TABLE.replace("ret", alike)).unwrap();
    }
}
