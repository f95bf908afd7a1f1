//! Text to tree: a recursive-descent parser, one function a level of precedence.

use super::{ExprError, Function, Node, Op};

/// Nesting beyond this is refused, so that hostile text cannot exhaust the stack.
const MAX_DEPTH: usize = 64;

pub(super) fn parse(text: &str) -> Result<Node, ExprError> {
    let mut parser = Parser { text, rest: text, depth: 0 };
    let node = parser.choice()?;
    if parser.peek().is_some() {
        return Err(parser.error("unexpected text"));
    }
    Ok(node)
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    depth: usize,
}

const LEVELS: [&[(&str, Op)]; 6] = [
    &[("||", Op::Or)],
    &[("&&", Op::And)],
    &[("==", Op::Eq), ("!=", Op::Ne)],
    &[("<=", Op::Le), (">=", Op::Ge), ("<", Op::Lt), (">", Op::Gt)],
    &[("+", Op::Add), ("-", Op::Sub)],
    &[("*", Op::Mul), ("/", Op::Div), ("%", Op::Rem)],
];

impl Parser<'_> {
    fn error(&self, what: impl Into<String>) -> ExprError {
        let column = self.text.len() - self.rest.trim_start().len() + 1;
        ExprError::Syntax { text: self.text.to_owned(), what: what.into(), column }
    }

    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn take(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), ExprError> {
        if self.take(token) { Ok(()) } else { Err(self.error(format!("expected `{token}`"))) }
    }

    fn choice(&mut self) -> Result<Node, ExprError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        let condition = self.binary(0)?;
        let node = if self.take("?") {
            let yes = self.choice()?;
            self.expect(":")?;
            let no = self.choice()?;
            Node::Choice(Box::new(condition), Box::new(yes), Box::new(no))
        } else {
            condition
        };
        self.depth -= 1;
        Ok(node)
    }

    fn binary(&mut self, level: usize) -> Result<Node, ExprError> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(&(_, op)) = operators.iter().find(|(token, _)| self.take(token)) {
            let right = self.binary(level + 1)?;
            left = Node::Binary(op, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Node, ExprError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        let node = if self.take("-") {
            Node::Neg(Box::new(self.unary()?))
        } else if self.take("!") {
            Node::Not(Box::new(self.unary()?))
        } else {
            self.atom()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn atom(&mut self) -> Result<Node, ExprError> {
        match self.peek() {
            Some('(') => {
                self.expect("(")?;
                let node = self.choice()?;
                self.expect(")")?;
                Ok(node)
            }
            Some(c) if c.is_ascii_digit() => self.number(),
            Some(c) if c.is_ascii_alphabetic() || c == '_' => self.name_or_call(),
            Some(_) => Err(self.error("unexpected text")),
            None => Err(self.error("the expression ends too early")),
        }
    }

    fn number(&mut self) -> Result<Node, ExprError> {
        let bytes = self.rest.as_bytes();
        let mut end = 0;
        while let Some(&byte) = bytes.get(end) {
            let sign_of_exponent = matches!(byte, b'-' | b'+') && end > 0 && matches!(bytes[end - 1], b'e' | b'E');
            if byte.is_ascii_alphanumeric() || byte == b'.' || sign_of_exponent {
                end += 1;
            } else {
                break;
            }
        }
        let literal = &self.rest[..end];
        let node = if let Ok(value) = literal.parse() {
            Node::Int(value)
        } else if let (true, Ok(value)) = (literal.contains(['.', 'e', 'E']), literal.parse()) {
            Node::Float(value)
        } else {
            return Err(self.error(format!("`{literal}` is not a number")));
        };
        self.rest = &self.rest[end..];
        Ok(node)
    }

    fn name_or_call(&mut self) -> Result<Node, ExprError> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
        let name = self.rest[..end].to_owned();
        let before = self.rest;
        self.rest = &self.rest[end..];
        if !self.take("(") {
            return Ok(Node::Name(name));
        }
        let (function, arity) = match name.as_str() {
            "ceil_div" => (Function::CeilDiv, 2),
            "min" => (Function::Min, 2),
            "max" => (Function::Max, 2),
            "sqrt" => (Function::Sqrt, 1),
            "next_power_of_2" => (Function::NextPowerOf2, 1),
            _ => {
                self.rest = before;
                return Err(self.error(format!("unknown function `{name}`")));
            }
        };
        let mut arguments = vec![self.choice()?];
        while self.take(",") {
            arguments.push(self.choice()?);
        }
        self.expect(")")?;
        if arguments.len() != arity {
            return Err(self.error(format!("`{name}` takes {arity} arguments, not {}", arguments.len())));
        }
        Ok(Node::Call(function, arguments))
    }
}
