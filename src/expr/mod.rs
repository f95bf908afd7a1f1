//! Expressions of front matter and operation files: `ceil_div(rows, 4)`, `cols % 8 == 0 && D <= 128`.
//!
//! One grammar, two evaluations: checked 64-bit integers for shapes, grids and conditions
//! ([`Expr::int`]; division truncates as in C, overflow is an error), and doubles for scales and
//! tolerances ([`Expr::float`], which adds `sqrt` and decimal literals). Conditions give 0 or 1.
//!
//! Precedence, loosest first: `?:`, `||`, `&&`, `== !=`, `< <= > >=`, `+ -`, `* / %`, unary `- !`.

mod eval;
mod parse;

use serde::{Deserialize, Serialize};

/// A parsed expression with the text it came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expr {
    text: String,
    node: Node,
}

/// What an expression can fail with; `text` is the whole expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    /// The text does not follow the grammar.
    #[error("`{text}`: {what} at column {column}")]
    Syntax {
        /// The expression.
        text: String,
        /// What is wrong.
        what: String,
        /// Where, counted from 1.
        column: usize,
    },
    /// A name that the place of use does not define.
    #[error("`{text}`: unknown name `{name}`")]
    Unknown {
        /// The expression.
        text: String,
        /// The name.
        name: String,
    },
    /// Overflow, division by zero, a function of doubles among integers.
    #[error("`{text}`: {what}")]
    Arithmetic {
        /// The expression.
        text: String,
        /// What happened.
        what: &'static str,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Int(i64),
    Float(f64),
    Name(String),
    Neg(Box<Node>),
    Not(Box<Node>),
    Binary(Op, Box<Node>, Box<Node>),
    Choice(Box<Node>, Box<Node>, Box<Node>),
    Call(Function, Vec<Node>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Or,
    And,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    CeilDiv,
    Min,
    Max,
    Sqrt,
    NextPowerOf2,
}

impl Expr {
    /// The text as written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names it reads, each once, in order of appearance.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut found = Vec::new();
        collect_names(&self.node, &mut found);
        found
    }
}

fn collect_names<'a>(node: &'a Node, found: &mut Vec<&'a str>) {
    match node {
        Node::Int(_) | Node::Float(_) => {}
        Node::Name(name) => {
            if !found.contains(&name.as_str()) {
                found.push(name);
            }
        }
        Node::Neg(a) | Node::Not(a) => collect_names(a, found),
        Node::Binary(_, a, b) => [a, b].into_iter().for_each(|n| collect_names(n, found)),
        Node::Choice(a, b, c) => [a, b, c].into_iter().for_each(|n| collect_names(n, found)),
        Node::Call(_, arguments) => arguments.iter().for_each(|n| collect_names(n, found)),
    }
}

impl TryFrom<String> for Expr {
    type Error = ExprError;
    fn try_from(text: String) -> Result<Self, ExprError> {
        let node = parse::parse(&text)?;
        Ok(Self { text, node })
    }
}

impl From<i64> for Expr {
    fn from(value: i64) -> Self {
        Self { text: value.to_string(), node: Node::Int(value) }
    }
}

impl From<f64> for Expr {
    /// A finite number as the expression that has it for a value: `Display` writes neither exponents nor too few digits.
    fn from(value: f64) -> Self {
        Self { text: value.to_string(), node: Node::Float(value) }
    }
}

impl std::str::FromStr for Expr {
    type Err = ExprError;
    fn from_str(text: &str) -> Result<Self, ExprError> {
        Self::try_from(text.to_owned())
    }
}

impl From<Expr> for String {
    fn from(expr: Expr) -> Self {
        expr.text
    }
}

impl std::fmt::Display for Expr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}
