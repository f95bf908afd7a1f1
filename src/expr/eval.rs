//! Tree to value, in checked integers or in doubles.

use super::{Expr, ExprError, Function, Node, Op};

impl Expr {
    /// The value in checked 64-bit integers; `lookup` gives the names their values.
    ///
    /// # Errors
    /// An unknown name, overflow, division by zero, a decimal literal or `sqrt`.
    pub fn int(&self, lookup: &dyn Fn(&str) -> Option<i64>) -> Result<i64, ExprError> {
        int(&self.node, lookup).map_err(|fault| self.explain(fault))
    }

    /// Whether the condition holds: its integer value is not zero.
    ///
    /// # Errors
    /// As [`Expr::int`].
    pub fn holds(&self, lookup: &dyn Fn(&str) -> Option<i64>) -> Result<bool, ExprError> {
        self.int(lookup).map(|value| value != 0)
    }

    /// The value as far as it does not depend on names that `lookup` does not know, or on what fails:
    /// `unknown > 4 && 0` is 0.
    #[must_use]
    pub fn decided(&self, lookup: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
        decided(&self.node, lookup)
    }

    /// The same with everything computed that depends on names alone which `lookup` knows: to be asked again and again for others.
    #[must_use]
    pub fn bound(&self, lookup: &dyn Fn(&str) -> Option<i64>) -> Self {
        Self { text: self.text.clone(), node: bound(&self.node, lookup) }
    }

    /// The value in doubles.
    ///
    /// # Errors
    /// An unknown name or division by zero.
    pub fn float(&self, lookup: &dyn Fn(&str) -> Option<f64>) -> Result<f64, ExprError> {
        float(&self.node, lookup).map_err(|fault| self.explain(fault))
    }

    fn explain(&self, fault: Fault) -> ExprError {
        let text = self.text.clone();
        match fault {
            Fault::Unknown(name) => ExprError::Unknown { text, name },
            Fault::Arithmetic(what) => ExprError::Arithmetic { text, what },
        }
    }
}

enum Fault {
    Unknown(String),
    Arithmetic(&'static str),
}

fn int(node: &Node, lookup: &dyn Fn(&str) -> Option<i64>) -> Result<i64, Fault> {
    const OVERFLOW: Fault = Fault::Arithmetic("overflows 64 bits");
    Ok(match node {
        Node::Int(value) => *value,
        Node::Float(_) => return Err(Fault::Arithmetic("a decimal number among integers")),
        Node::Name(name) => lookup(name).ok_or_else(|| Fault::Unknown(name.clone()))?,
        Node::Neg(a) => int(a, lookup)?.checked_neg().ok_or(OVERFLOW)?,
        Node::Not(a) => i64::from(int(a, lookup)? == 0),
        Node::Choice(c, yes, no) => int(if int(c, lookup)? != 0 { yes } else { no }, lookup)?,
        Node::Binary(Op::And, a, b) => i64::from(int(a, lookup)? != 0 && int(b, lookup)? != 0),
        Node::Binary(Op::Or, a, b) => i64::from(int(a, lookup)? != 0 || int(b, lookup)? != 0),
        Node::Binary(op, a, b) => {
            let (a, b) = (int(a, lookup)?, int(b, lookup)?);
            match op {
                Op::Or | Op::And => unreachable!("handled above, because they short-circuit"),
                Op::Eq => i64::from(a == b),
                Op::Ne => i64::from(a != b),
                Op::Lt => i64::from(a < b),
                Op::Le => i64::from(a <= b),
                Op::Gt => i64::from(a > b),
                Op::Ge => i64::from(a >= b),
                Op::Add => a.checked_add(b).ok_or(OVERFLOW)?,
                Op::Sub => a.checked_sub(b).ok_or(OVERFLOW)?,
                Op::Mul => a.checked_mul(b).ok_or(OVERFLOW)?,
                Op::Div => divide(a, b, i64::checked_div)?,
                Op::Rem => divide(a, b, i64::checked_rem)?,
            }
        }
        Node::Call(Function::Sqrt, _) => return Err(Fault::Arithmetic("sqrt among integers")),
        Node::Call(Function::NextPowerOf2, arguments) => {
            let least = int(&arguments[0], lookup)?.max(1) as u64;
            i64::try_from(least.next_power_of_two()).map_err(|_| OVERFLOW)?
        }
        Node::Call(function, arguments) => {
            let (a, b) = (int(&arguments[0], lookup)?, int(&arguments[1], lookup)?);
            match function {
                Function::Min => a.min(b),
                Function::Max => a.max(b),
                Function::CeilDiv | Function::Sqrt | Function::NextPowerOf2 => {
                    let quotient = divide(a, b, i64::checked_div)?;
                    let up = a % b != 0 && (a < 0) == (b < 0);
                    quotient + i64::from(up)
                }
            }
        }
    })
}

/// Only what chooses among its operands can be decided without all of them.
fn decided(node: &Node, lookup: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    match node {
        Node::Not(a) => decided(a, lookup).map(|value| i64::from(value == 0)),
        Node::Choice(c, yes, no) => match decided(c, lookup) {
            Some(condition) => decided(if condition != 0 { yes } else { no }, lookup),
            None => decided(yes, lookup).filter(|value| decided(no, lookup) == Some(*value)),
        },
        Node::Binary(op @ (Op::And | Op::Or), a, b) => {
            let deciding = *op == Op::Or;
            let truth = [a, b].map(|side| decided(side, lookup).map(|value| value != 0));
            match truth {
                _ if truth.contains(&Some(deciding)) => Some(i64::from(deciding)),
                [Some(_), Some(_)] => Some(i64::from(!deciding)),
                _ => None,
            }
        }
        _ => int(node, lookup).ok(),
    }
}

/// What fails stays as it is, and fails when it is asked for.
fn bound(node: &Node, lookup: &dyn Fn(&str) -> Option<i64>) -> Node {
    if let Ok(value) = int(node, lookup) {
        return Node::Int(value);
    }
    let inner = |node: &Node| Box::new(bound(node, lookup));
    match node {
        Node::Choice(c, yes, no) => match int(c, lookup) {
            Ok(condition) => bound(if condition != 0 { yes } else { no }, lookup),
            Err(_) => Node::Choice(inner(c), inner(yes), inner(no)),
        },
        Node::Neg(a) => Node::Neg(inner(a)),
        Node::Not(a) => Node::Not(inner(a)),
        Node::Binary(op, a, b) => Node::Binary(*op, inner(a), inner(b)),
        Node::Call(function, arguments) => {
            Node::Call(*function, arguments.iter().map(|argument| bound(argument, lookup)).collect())
        }
        Node::Int(_) | Node::Float(_) | Node::Name(_) => node.clone(),
    }
}

fn divide(a: i64, b: i64, by: fn(i64, i64) -> Option<i64>) -> Result<i64, Fault> {
    by(a, b).ok_or(Fault::Arithmetic(if b == 0 { "division by zero" } else { "overflows 64 bits" }))
}

fn float(node: &Node, lookup: &dyn Fn(&str) -> Option<f64>) -> Result<f64, Fault> {
    let truth = |condition: bool| f64::from(u8::from(condition));
    Ok(match node {
        Node::Int(value) => *value as f64,
        Node::Float(value) => *value,
        Node::Name(name) => lookup(name).ok_or_else(|| Fault::Unknown(name.clone()))?,
        Node::Neg(a) => -float(a, lookup)?,
        Node::Not(a) => truth(float(a, lookup)? == 0.0),
        Node::Choice(c, yes, no) => float(if float(c, lookup)? != 0.0 { yes } else { no }, lookup)?,
        Node::Binary(op, a, b) => {
            let (a, b) = (float(a, lookup)?, float(b, lookup)?);
            match op {
                Op::Or => truth(a != 0.0 || b != 0.0),
                Op::And => truth(a != 0.0 && b != 0.0),
                Op::Eq => truth(a == b),
                Op::Ne => truth(a != b),
                Op::Lt => truth(a < b),
                Op::Le => truth(a <= b),
                Op::Gt => truth(a > b),
                Op::Ge => truth(a >= b),
                Op::Add => a + b,
                Op::Sub => a - b,
                Op::Mul => a * b,
                Op::Div | Op::Rem if b == 0.0 => return Err(Fault::Arithmetic("division by zero")),
                Op::Div => a / b,
                Op::Rem => a % b,
            }
        }
        Node::Call(function, arguments) => {
            let mut values = arguments.iter().map(|argument| float(argument, lookup));
            let mut next = || values.next().unwrap_or(Err(Fault::Arithmetic("an argument is missing")));
            match function {
                Function::Sqrt => next()?.sqrt(),
                Function::Min => next()?.min(next()?),
                Function::Max => next()?.max(next()?),
                Function::CeilDiv => (next()? / next()?).ceil(),
                Function::NextPowerOf2 => next()?.max(1.0).log2().ceil().exp2(),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str) -> Result<i64, ExprError> {
        text.parse::<Expr>()?.int(&|name| match name {
            "rows" => Some(4097),
            "cols" => Some(1024),
            "THREADS" => Some(256),
            _ => None,
        })
    }

    #[test]
    fn an_expression_is_the_same_where_some_of_its_names_are_known_before() {
        let texts = [
            "(bshd ? z / H * S * H + z % H : z * S) * D",
            "z > 3 && H || bshd ? ceil_div(z, H) : min(z, -S)",
            "max(1, z / (bshd - bshd))",
            "!z + next_power_of_2(z * S) - H",
        ];
        for (text, bshd) in texts.into_iter().flat_map(|text| [(text, 0), (text, 1)]) {
            let Ok(expr) = text.parse::<Expr>() else { panic!("{text} does not parse") };
            let known = |name: &str| match name {
                "bshd" => Some(bshd),
                "H" => Some(4),
                "S" => Some(16),
                "D" => Some(64),
                _ => None,
            };
            let bound = expr.bound(&known);
            for z in 0..9 {
                let all = |name: &str| if name == "z" { Some(z) } else { known(name) };
                let alone = bound.int(&|name| (name == "z").then_some(z));
                assert_eq!(alone, expr.int(&all), "{text} at {z}, bshd = {bshd}");
            }
        }
    }

    #[test]
    fn expressions_follow_the_precedence_of_c() {
        let cases = [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("-2 - -3", 1),
            ("7 / 2 * 2", 6),
            ("-7 / 2", -3),
            ("7 % 4 == 3 && !0", 1),
            ("1 < 2 == 1", 1),
            ("ceil_div(rows, 4)", 1025),
            ("next_power_of_2(rows)", 8192),
            ("next_power_of_2(cols)", 1024),
            ("next_power_of_2(0)", 1),
            ("max(1, THREADS / 128)", 2),
            ("cols <= 1024 ? 128 : 256", 128),
            ("0 ? 1 : 0 ? 2 : 3", 3),
            ("rows > 10 || 1 / 0", 1),
        ];
        for (text, expected) in cases {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn faults_name_the_expression_and_the_reason() {
        for (text, part) in [
            ("1 +", "ends too early"),
            ("nope * 2", "unknown name `nope`"),
            ("system(1)", "unknown function `system`"),
            ("9223372036854775807 + 1", "overflows"),
            ("1 / 0", "division by zero"),
            ("1.5 * 2", "decimal"),
            ("min(1)", "takes 2 arguments"),
            ("1 2", "unexpected text"),
            ("99999999999999999999", "not a number"),
        ] {
            let message = value(text).expect_err(text).to_string();
            assert!(message.contains(part) && message.contains(text), "{text}: {message}");
        }
        assert!(value(&"(".repeat(10_000)).is_err());
        assert!(value(&"-".repeat(10_000)).is_err());
    }

    #[test]
    fn what_the_known_names_decide_is_known() {
        let decided = |text: &str| {
            let expr: Expr = text.parse().expect("parses");
            expr.decided(&|name| (name == "known").then_some(4))
        };
        assert_eq!(decided("known == 4"), Some(1));
        assert_eq!(decided("M > 16 && known == 2"), Some(0));
        assert_eq!(decided("known == 2 && M > 16"), Some(0));
        assert_eq!(decided("M > 16 && known == 4"), None);
        assert_eq!(decided("M > 16 || known == 4"), Some(1));
        assert_eq!(decided("!(M > 16 || known == 4) && 1"), Some(0));
        assert_eq!(decided("M > 16 ? known : 4"), Some(4));
        assert_eq!(decided("M > 16 ? known : 5"), None);
        assert_eq!(decided("known == 4 ? 7 : M"), Some(7));
        assert_eq!(decided("0 && 1 / 0"), Some(0));
        assert_eq!(decided("M == M"), None);
    }

    #[test]
    fn doubles_have_roots_and_decimals() {
        let scale: Expr = "1 / sqrt(K) + 0.5e0".parse().expect("parses");
        assert_eq!(scale.float(&|_| Some(4.0)), Ok(1.0));
        assert_eq!(scale.names(), ["K"]);
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused_without_panicking(text in ".{0,60}") {
            let _ = value(&text);
        }

        #[test]
        fn ceil_div_is_the_smallest_cover(a in 0i64..1_000_000, b in 1i64..5000) {
            let q = value(&format!("ceil_div({a}, {b})")).expect("defined");
            prop_assert!(q * b >= a && (q - 1) * b < a.max(1));
        }
    }
}
