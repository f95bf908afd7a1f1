//! Reading a kernel as text of the virtual machine, where macros, templates and inline assembler are all spelled out.
//!
//! Two things are refused here. *Clocks*: whatever tells launches or times apart. *Memory that outlives a launch*: a variable
//! in device memory may be a table that is only read, so every use of its address must be a load. The proof is simple, and
//! refuses what it does not understand; `__constant__` tables need none.

use std::collections::BTreeSet;

/// Special registers that no kernel needs for its result, and what is wrong with them.
const REGISTERS: [(&str, &str); 5] = [
    ("%clock", "it reads the clock"),
    ("%globaltimer", "it reads the clock"),
    ("%pm", "it reads performance counters"),
    ("%gridid", "it tells one launch from another"),
    ("%envreg", "it reads the driver's registers"),
];

/// Instructions that put an address computed from their operands into their first one.
const ARITHMETIC: [&str; 11] = ["mov", "cvta", "add", "sub", "mad", "shl", "or", "and", "cvt", "selp", "min"];

/// The names of variables in device memory, all of them only read.
///
/// # Errors
/// A sentence: what is refused.
pub(super) fn check(ptx: &str) -> Result<BTreeSet<String>, String> {
    let text = without_comments(ptx);
    for token in tokens(&text) {
        if let Some((_, why)) = REGISTERS.iter().find(|(register, _)| special(token, register)) {
            return Err(format!("{why} (`{token}`)"));
        }
    }
    let statements = statements(&text);
    let mut names = BTreeSet::new();
    for statement in &statements {
        if let Some(name) = declared(statement.text) {
            names.insert(name.to_owned());
        }
    }
    for name in &names {
        read_only(name, &statements)?;
    }
    Ok(names)
}

/// Whether a token is this special register or one of its kind (`%clock`, `%clock64`, `%pm3_64`).
fn special(token: &str, register: &str) -> bool {
    token.strip_prefix(register).is_some_and(|rest| match register {
        "%pm" | "%envreg" => rest.starts_with(|c: char| c.is_ascii_digit()),
        "%gridid" => rest.is_empty(),
        "%clock" => matches!(rest, "" | "64" | "_hi"),
        _ => rest.is_empty() || rest.starts_with('_'),
    })
}

fn without_comments(ptx: &str) -> String {
    let mut text = String::with_capacity(ptx.len());
    let mut rest = ptx;
    // Strings stand in directives for debuggers only, and are harmless as code.
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        let end = if from.starts_with("//") {
            from.find('\n').unwrap_or(from.len())
        } else if let Some(comment) = from.strip_prefix("/*") {
            comment.find("*/").map_or(from.len(), |end| end + 4)
        } else {
            text.push('/');
            1
        };
        text.push(' ');
        rest = &from[end..];
    }
    text.push_str(rest);
    text
}

/// Words, with the signs that names of PTX may have.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%'))).filter(|token| !token.is_empty())
}

struct Statement<'a> {
    /// Which function it stands in; registers are a function's own.
    function: usize,
    text: &'a str,
}

fn statements(text: &str) -> Vec<Statement<'_>> {
    let mut function = 0;
    text.split(';')
        .map(|text| {
            let text = text.trim();
            if tokens(text).any(|token| token == "entry" || token == "func") {
                function += 1;
            }
            Statement { function, text }
        })
        .collect()
}

/// The name of the variable in device memory that a statement declares.
fn declared(statement: &str) -> Option<&str> {
    // In an instruction it is part of the operation: `ld.global.u32`.
    let word = |at: usize| !statement[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
    let (at, _) = statement
        .match_indices(".global")
        .find(|(at, found)| word(*at) && statement[at + found.len()..].starts_with(char::is_whitespace))?;
    let head = statement[at..].split(['=', '[']).next()?;
    tokens(head).last()
}

/// Whether every use of a variable's address is a load.
fn read_only(name: &str, statements: &[Statement<'_>]) -> Result<(), String> {
    let refuse =
        || Err(format!("writable device memory that outlives a launch (`{name}`); tables belong in `__constant__`"));
    // Registers that hold an address of it.
    let mut held: BTreeSet<(usize, &str)> = BTreeSet::new();
    loop {
        let before = held.len();
        for statement in statements {
            let mentions = |token: &&str| *token == name || held.contains(&(statement.function, *token));
            if !tokens(statement.text).any(|token| mentions(&token)) || declared(statement.text) == Some(name) {
                if declared(statement.text) == Some(name) && tokens(statement.text).filter(|t| *t == name).count() > 1 {
                    return refuse();
                }
                continue;
            }
            let instruction = instruction(statement.text);
            let (operation, operands) = instruction.split_once(char::is_whitespace).unwrap_or((instruction, ""));
            let mut words = operation.split('.');
            let kind = words.next().unwrap_or_default();
            let mut operands = operands.split(',');
            let target = operands.next().unwrap_or_default().trim();
            let sources_mention = operands.any(|operand| tokens(operand).any(|token| mentions(&token)));
            match kind {
                // A load's first operand is where the value goes, and the value is no address.
                "ld" | "ldu" | "prefetch" | "prefetchu" => {}
                _ if !sources_mention && ARITHMETIC.contains(&kind) => {}
                _ if ARITHMETIC.contains(&kind) && target.starts_with('%') && tokens(target).count() == 1 => {
                    held.extend(tokens(target).map(|token| (statement.function, token)));
                }
                _ => return refuse(),
            }
        }
        if held.len() == before {
            return Ok(());
        }
    }
}

/// A statement without what may stand before an instruction: braces, labels, a guard.
fn instruction(mut text: &str) -> &str {
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
        .visible .entry k(\n.param .u64 k_param_0\n)\n{\n.reg .b64 %rd<8>;\n\
        mov.u64 \t%rd5, table;\nadd.s64 \t%rd7, %rd5, %rd6;\n$L__BB0_1:\n@%p1 ld.global.nc.f32 \t%f1, [%rd7];\n\
        st.global.f32 \t[%rd4], %f1;\nret;\n}\n";

    #[test]
    fn a_table_that_is_only_read_is_fine() {
        assert_eq!(check(TABLE).unwrap().into_iter().collect::<Vec<_>>(), ["table"]);
        let direct = TABLE.replace("mov.u64 \t%rd5, table;", "ld.global.u32 %r1, [table+4];");
        check(&direct).unwrap();
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
            ("st.global.f32 \t[%rd4], %f1", "{ // asm\n st.param.b64 [param0+0], %rd5"),
            ("st.global.f32 \t[%rd4], %f1", "mov.u64 %rd1, %rd7; L: st.u32 [%rd1], 4"),
            (".version", ".global .u64 p = generic(table); .version"),
        ] {
            let error = check(&TABLE.replace(from, to)).unwrap_err();
            assert!(error.contains("outlives a launch (`table`)"), "{to}: {error}");
        }
        let plain = ".global .align 4 .u32 counter;\n.visible .entry k()\n{\n.reg .b32 %r<2>;\n\
            atom.global.add.u32 \t%r1, [counter], 1;\nret;\n}";
        assert!(check(plain).unwrap_err().contains("`counter`"));
        check(&plain.replace("atom.global.add.u32 \t%r1, [counter], 1;", "")).unwrap();
    }

    #[test]
    fn registers_belong_to_their_function() {
        let other = ".visible .entry other()\n{\n.reg .b64 %rd<8>;\nst.global.f32 [%rd7], %f1;\nret;\n}";
        check(&format!("{TABLE}{other}")).unwrap();
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
            let ptx = format!(".visible .entry k()\n{{\n// begin inline asm\nmov.u64 %rd1, {register};\n}}");
            assert!(check(&ptx).is_err(), "{register}");
        }
        check("mov.u32 %r1, %clockwise; mov.u32 %r2, %smid; mov.u32 %pmx, %tid.x; // %clock\n/* %globaltimer */")
            .unwrap();
    }
}
