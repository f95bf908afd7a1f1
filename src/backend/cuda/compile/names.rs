//! What the names of a text stand for: registers that are declared, registers that every kernel has, and parameters with their sizes.
//!
//! A name that is declared in braces is gone behind them, and what it hid is there again. So registers and parameters are looked up
//! where they are used, as the assembler does it.

use std::collections::BTreeMap;

use super::lexer::Statement;
use super::ptx::{Instruction, instruction, tokens};
use crate::defence::Defence;

/// Special registers that kernels may read: where a thread is, and how much there is of everything.
const ALLOWED: [&str; 21] = [
    "%tid",
    "%ntid",
    "%ctaid",
    "%nctaid",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%is_explicit_cluster",
    "%clusterid",
    "%nclusterid",
    "%total_smem_size",
    "%aggr_smem_size",
    "%dynamic_smem_size",
    "%WARP_SZ",
];

/// Beginnings of those of clusters: `%cluster_ctaid`, `%cluster_nctarank` and so on.
const OF_CLUSTERS: [&str; 4] = ["%cluster_ctaid", "%cluster_nctaid", "%cluster_ctarank", "%cluster_nctarank"];

/// Special registers of which it is known what is wrong with them.
const FORBIDDEN: [(&str, &str); 6] = [
    ("%clock", "it reads the clock"),
    ("%globaltimer", "it reads the clock"),
    ("%pm", "it reads performance counters"),
    ("%gridid", "it tells one launch from another"),
    ("%current_graph_exec", "it tells a launch in a graph from one by itself"),
    ("%envreg", "it reads the driver's registers"),
];

/// What a name was declared as.
enum Declared {
    Register,
    /// So many registers: the name and a number.
    Registers(u64),
    /// A parameter, of so many bytes.
    Parameter(u64),
}

/// Names by the braces that they are declared in.
#[derive(Default)]
struct Scopes<'a>(Vec<BTreeMap<&'a str, Declared>>);

impl<'a> Scopes<'a> {
    fn declare(&mut self, name: &'a str, what: Declared) {
        if self.0.is_empty() {
            self.0.push(BTreeMap::new());
        }
        if let Some(inner) = self.0.last_mut() {
            inner.insert(name, what);
        }
    }

    fn parameter(&self, name: &str) -> Option<u64> {
        self.0.iter().rev().find_map(|scope| match scope.get(name)? {
            Declared::Parameter(bytes) => Some(*bytes),
            _ => None,
        })
    }

    fn is_register(&self, name: &str) -> bool {
        let start = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: Option<u64> = name[start.len()..].parse().ok();
        self.0.iter().any(|scope| {
            matches!(scope.get(name), Some(Declared::Register))
                // `%r1<10>` has `%r10` to `%r19`.
                || number.is_some()
                    && (start.len()..name.len()).any(|end| match (scope.get(&name[..end]), name[end..].parse::<u64>()) {
                        (Some(Declared::Registers(many)), Ok(number)) => number < *many,
                        _ => false,
                    })
        })
    }
}

/// Whether all names that begin with `%` are registers that a kernel may read, and whether parameters and constants are read within
/// their bounds.
///
/// # Errors
/// A sentence: what is refused.
pub(super) fn check(statements: &[Statement<'_>]) -> Result<(), String> {
    // Constants are known everywhere; what functions declare is not.
    let mut constants: BTreeMap<&str, u64> = BTreeMap::new();
    let mut scopes = Scopes::default();
    let mut function = None;
    for statement in statements {
        if function.replace(statement.function) != Some(statement.function) {
            scopes = Scopes::default();
        }
        if let Some((_, head)) = statement.head {
            registers(head, &scopes)?;
            let lists = head.split('(').skip(1).filter_map(|list| list.split(')').next());
            for (name, bytes) in lists.flat_map(|list| list.split(',')).filter_map(sized) {
                scopes.declare(name, Declared::Parameter(bytes));
            }
            continue;
        }
        let text = enter(statement.text, &mut scopes);
        registers(statement.text, &scopes)?;
        let (directive, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match directive {
            ".reg" => declare_registers(rest, &mut scopes)?,
            ".param" => {
                if let Some((name, bytes)) = sized(rest) {
                    scopes.declare(name, Declared::Parameter(bytes));
                }
            }
            _ => {
                if let Some((name, bytes)) = of_constant(text).and_then(sized) {
                    constants.insert(name, bytes);
                } else if Defence::ConstantAddresses.stands() {
                    bounds(&Instruction::of(text), &scopes, &constants)?;
                }
                // Braces behind it are those of an instruction, and closed in it, or end what was begun.
                leave(text, &mut scopes);
            }
        }
    }
    Ok(())
}

/// Goes through what stands before an instruction; the rest of a statement.
fn enter<'a>(text: &'a str, scopes: &mut Scopes<'a>) -> &'a str {
    let inner = instruction(text);
    let before = &text[..text.len() - inner.len()];
    leave(before, scopes);
    inner
}

fn leave(text: &str, scopes: &mut Scopes<'_>) {
    for sign in text.chars() {
        match sign {
            '{' => {
                if scopes.0.is_empty() {
                    scopes.0.push(BTreeMap::new());
                }
                scopes.0.push(BTreeMap::new());
            }
            '}' => drop(scopes.0.pop()),
            _ => {}
        }
    }
}

fn declare_registers<'a>(list: &'a str, scopes: &mut Scopes<'a>) -> Result<(), String> {
    for one in list.split(',') {
        let (name, many) = one.split_once('<').map_or((one, None), |(name, rest)| (name, Some(rest)));
        let Some(name) = tokens(name).last() else { continue };
        if is_special(name) {
            return Err(format!("`{name}` is a register that every kernel has, and cannot be declared"));
        }
        match many {
            None => scopes.declare(name, Declared::Register),
            Some(many) => {
                let many = many.trim_end_matches(|c: char| c == '>' || c.is_whitespace()).parse();
                scopes.declare(name, Declared::Registers(many.map_err(|_| format!("`.reg {list}`"))?));
            }
        }
    }
    Ok(())
}

fn is_special(name: &str) -> bool {
    ALLOWED.contains(&name) || OF_CLUSTERS.contains(&name) || forbidden(name).is_some()
}

fn forbidden(name: &str) -> Option<&'static str> {
    let one = FORBIDDEN.iter().find(|(register, _)| {
        name.strip_prefix(register).is_some_and(|rest| match *register {
            "%pm" | "%envreg" => rest.starts_with(|c: char| c.is_ascii_digit()),
            "%gridid" | "%current_graph_exec" => rest.is_empty(),
            "%clock" => matches!(rest, "" | "64" | "_hi"),
            _ => rest.is_empty() || rest.starts_with('_'),
        })
    });
    one.map(|(_, why)| *why)
}

fn registers(text: &str, scopes: &Scopes<'_>) -> Result<(), String> {
    let declares = instruction(text).starts_with(".reg ");
    for name in tokens(text).filter(|name| name.starts_with('%')) {
        if let Some(why) = forbidden(name) {
            return Err(format!("{why} (`{name}`)"));
        }
        if !(declares || ALLOWED.contains(&name) || OF_CLUSTERS.contains(&name) || scopes.is_register(name)) {
            return Err(format!(
                "`{name}` is no register that the kernel declares, and none of those that say where a thread is and how many there are"
            ));
        }
    }
    Ok(())
}

/// The name that a declaration gives, and its bytes.
fn sized(declaration: &str) -> Option<(&str, u64)> {
    let (front, count) = declaration.split_once('[').map_or((declaration, None), |(front, rest)| (front, Some(rest)));
    let front = front.split('=').next()?;
    let name = tokens(front).last()?;
    let width = front.split_whitespace().find_map(|word| width(word.strip_prefix('.')?))?;
    let count = count.map_or(Some(1), |count| count.split(']').next()?.trim().parse().ok())?;
    Some((name, u64::checked_mul(width, count)?))
}

/// What follows `.const` in a declaration.
fn of_constant(text: &str) -> Option<&str> {
    let rest = text.split_once(".const ")?.1;
    text.starts_with('.').then_some(rest)
}

/// The bytes of a type.
fn width(kind: &str) -> Option<u64> {
    let bits = kind.strip_prefix(['b', 'u', 's', 'f'])?;
    matches!(bits, "8" | "16" | "32" | "64" | "128").then(|| bits.parse::<u64>().ok()).flatten().map(|bits| bits / 8)
}

/// Whether a load or store of a parameter stays within it, and a load of a constant too as far as its place is a number.
fn bounds(instruction: &Instruction<'_>, scopes: &Scopes<'_>, constants: &BTreeMap<&str, u64>) -> Result<(), String> {
    if !matches!(instruction.kind(), "ld" | "ldu" | "st") {
        return Ok(());
    }
    let inside = instruction.operands.split('[').nth(1).and_then(|inside| inside.split(']').next()).unwrap_or("");
    let name = tokens(inside).next().unwrap_or_default();
    let parameter = scopes.parameter(name);
    let constant = constants.get(name).copied();
    let bytes = match (parameter, constant) {
        (Some(bytes), _) | (None, Some(bytes)) => bytes,
        _ if instruction.in_space("param") => {
            return Err(format!(
                "the address of a kernel's parameter is computed (`[{inside}]`); read parameters by their names"
            ));
        }
        _ if instruction.has("const")
            && !name.starts_with(|c: char| c == '%' || c.is_ascii_alphabetic() || c == '_') =>
        {
            return Err(format!("constants are read at an address that is no constant's (`[{inside}]`)"));
        }
        _ => return Ok(()),
    };
    let rest = inside.trim_start().strip_prefix(name).unwrap_or(inside).trim();
    let offset = match rest.strip_prefix('+') {
        None if rest.is_empty() => Some(0),
        Some(number) => number.trim().parse::<u64>().ok(),
        None => None,
    };
    let kinds = || instruction.operation.split('.');
    let many = kinds().find_map(|kind| kind.strip_prefix('v')?.parse::<u64>().ok()).unwrap_or(1);
    let read = kinds().filter_map(width).next_back().unwrap_or(16).saturating_mul(many);
    if offset.is_some_and(|offset| offset.checked_add(read).is_some_and(|end| end <= bytes)) {
        return Ok(());
    }
    let what = if parameter.is_some() { "parameter" } else { "constant" };
    Err(format!("it reads beside the {what} `{name}`, which has {bytes} bytes (`[{inside}]`)"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::lexer::Text;
    use super::check;

    fn error(body: &str) -> Option<String> {
        let text = format!(
            ".const .align 4 .b8 table[8] = {{0, 1}};\n.visible .entry k(.param .u64 a, .param .align 64 .b8 map[128])\n{{\n\
             .reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<9>;\n{body};\nret;\n}}"
        );
        check(&Text::of(&text).unwrap().statements()).err()
    }

    #[test]
    fn a_register_is_declared_or_one_of_those_that_are_allowed() {
        for honest in [
            "mov.u32 %r11, %tid.x; mov.u32 %r0, %cluster_ctarank; mov.u32 %r1, %dynamic_smem_size",
            "{ .reg .b32 %x; .reg .pred p, %q; @%q mov.u32 %x, %lanemask_lt; }",
            "{ .reg .b32 %r1<3>; mov.u32 %r12, 5; }",
        ] {
            assert_eq!(error(honest), None, "{honest}");
        }
        for (body, name) in [
            ("mov.u64 %rd1, %current_graph_exec", "%current_graph_exec"),
            ("mov.u64 %rd1, %gridid", "%gridid"),
            ("mov.u32 %r1, %physid", "%physid"),
            ("mov.u32 %r1, %reserved_smem_offset_begin", "%reserved_smem_offset_begin"),
            ("mov.u32 %r12, 5", "%r12"),
            // A name is gone behind the braces that it was declared in.
            ("{ .reg .b32 %physid; mov.u32 %physid, 1; }\nmov.u32 %r1, %physid", "%physid"),
            ("{ .reg .u32 %clock; mov.u32 %clock, 1; }", "%clock"),
            (".reg .u32 %tid; mov.u32 %tid, 1", "%tid"),
            (".reg .u32 %clock<65>; mov.u64 %rd1, %clock64", "%clock"),
            ("@%pred bra L; L: ret", "%pred"),
        ] {
            let error = error(body).unwrap_or_default();
            assert!(error.contains(&format!("`{name}")), "{body}: {error}");
        }
    }

    #[test]
    fn parameters_and_constants_are_read_within_their_bounds() {
        for honest in [
            "ld.param.u64 %rd1, [a]; ld.param.v4.u32 {%r1, %r2, %r3, %r4}, [map+112]",
            "{ .param .align 8 .b8 param0[16]; st.param.v2.b64 [param0+0], {%rd1, %rd2}; .param .b32 r; ld.param.b32 %r1, [r+0]; }",
            "ld.const.u32 %r1, [table+4]; ld.const.u32 %r1, [%rd1]; ld.global.u32 %r1, [%rd1+-480]",
        ] {
            assert_eq!(error(honest), None, "{honest}");
        }
        for (body, part) in [
            ("ld.param.u64 %rd1, [a+-480]", "beside the parameter `a`"),
            ("ld.param.u64 %rd1, [a-480]", "beside the parameter `a`"),
            ("ld.param.u64 %rd1, [a+4]", "beside the parameter `a`"),
            ("ld.param.u64 %rd1, [a+0x7fffffffffffffff]", "beside the parameter `a`"),
            ("ld.param.v4.u32 {%r1, %r2, %r3, %r4}, [map+116]", "which has 128 bytes"),
            ("ld.param::entry.u64 %rd1, [a+8]", "beside the parameter `a`"),
            ("ld.param.u64 %rd1, [%rd2]", "read parameters by their names"),
            ("ld.param.u64 %rd1, [528]", "read parameters by their names"),
            ("{ .param .b8 a[4096]; } ld.param.u64 %rd1, [a+512]", "which has 8 bytes"),
            ("ld.const.u32 %r1, [table+8]", "beside the constant `table`"),
            ("ld.const.u32 %r1, [16]", "no constant's"),
        ] {
            let error = error(body).unwrap_or_default();
            assert!(error.contains(part), "{body}: {error}");
        }
    }
}
