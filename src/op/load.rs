//! Reading `reference/<op>.toml` and `reference/<op>.h`.

use super::{OpError, OpSource, Operation, OracleKind, toml_reason};

impl Operation {
    /// Reads the operation `name`; `read` gives the text of a file of the workspace by its path there
    /// (`reference/matmul.toml`).
    ///
    /// # Errors
    /// [`OpError::Unknown`] where there is no such file, [`OpError::Invalid`] where one is wrong.
    pub fn load(read: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Self, OpError> {
        OpSource::read(name, read)?.operation()
    }

    /// An operation from the texts of its two files (`oracle` is the header, or the Python where PyTorch is the oracle), checked
    /// throughout: names, expressions at every listed shape, passes against tensors, tolerances against their limits.
    ///
    /// # Errors
    /// [`OpError::Invalid`] with the key and the reason.
    pub fn parse(toml: &str, oracle: &str, name: &str) -> Result<Self, OpError> {
        let invalid = |what: String| OpError::Invalid { file: format!("reference/{name}.toml"), what };
        let mut op: Self = toml::from_str(toml).map_err(|error| invalid(toml_reason(&error)))?;
        match op.oracle {
            OracleKind::Header => oracle.clone_into(&mut op.header),
            OracleKind::Torch => oracle.clone_into(&mut op.python),
        }
        if op.name != name {
            return Err(invalid(format!("name = \"{}\" does not match the file's name", op.name)));
        }
        super::check::keys(&op, toml).map_err(&invalid)?;
        super::check::check(&op).map_err(&invalid)?;
        if op.oracle == OracleKind::Torch && op.adversarial.is_empty() {
            op.adversarial = super::hostile::hostile(&op);
            super::check::check(&op).map_err(&invalid)?;
        }
        op.mixed = op.mixtures().map_err(|error| invalid(error.to_string()))?;
        Ok(op)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::samples::{MATMUL_H, MATMUL_TOML, RMSNORM_H, RMSNORM_TOML};
    use super::super::{Dtype, Pass, Shape};
    use super::*;

    fn read(path: &str) -> Option<String> {
        Some(
            match path {
                "reference/matmul.toml" => MATMUL_TOML,
                "reference/matmul.h" => MATMUL_H,
                "reference/rmsnorm.toml" => RMSNORM_TOML,
                _ => return None,
            }
            .to_owned(),
        )
    }

    #[test]
    fn an_operation_is_read_with_its_header() {
        let op = Operation::load(&read, "matmul").unwrap();
        assert_eq!(op.header, MATMUL_H);
        assert!(matches!(&op.passes[1], Pass::Product(product) if product.checked_by == "element"));
    }

    #[test]
    fn what_is_not_there_is_named() {
        for (name, part) in [("softmax", "softmax"), ("../etc/passwd", "no operation"), ("rmsnorm", "no oracle")] {
            let message = Operation::load(&read, name).unwrap_err().to_string();
            assert!(message.contains(part), "{name}: {message}");
        }
    }

    #[test]
    fn a_contradiction_is_refused_with_its_place() {
        let cases = [
            ("name = \"rmsnorm\"", "name = \"norm\"", "does not match"),
            ("primary = 0", "primary = 7", "primary"),
            ("symbols = [\"rows\", \"cols\"]", "symbols = [\"rows\", \"cols\", \"rows\"]", "`rows` stands twice"),
            ("symbols = [\"rows\", \"cols\"]", "symbols = [\"rows\", \"col umns\"]", "identifier"),
            ("flops = \"6 * rows * cols\"", "flops = \"6 * rows * columns\"", "unknown name `columns`"),
            ("f16 = \"4e-4\"", "f16 = \"2e-2\"", "looser"),
            ("row = \"cols\"", "row = \"0\"", "row"),
            ("size = \"rows * cols\"", "size = \"rows\"", "`y`"),
            ("smoke = { rows = 3, cols = 33 }", "smoke = { rows = 3 }", "missing"),
            ("smoke = { rows = 3, cols = 33 }", "smoke = { rows = 3, cols = 33, depth = 2 }", "not one of its symbols"),
            ("shrink = [\"rows\", \"cols\"]", "shrink = [\"height\"]", "shrink"),
            ("rows = [1, 70]", "rows = [70, 1]", "random"),
            ("[adversarial.draw.x]", "[adversarial.draw.y]", "not an input"),
            ("name = \"y\", role", "name = \"y\", draw = { dist = \"normal\" }, role", "output"),
            ("name = \"rows\"\nitems", "name = \"rowz\"\nitems", "WS_PASS(rowz)"),
            ("summary =", "surprise = 1\nsummary =", "surprise"),
        ];
        for (from, to, part) in cases {
            assert!(RMSNORM_TOML.contains(from), "{from}");
            let message =
                Operation::parse(&RMSNORM_TOML.replacen(from, to, 1), RMSNORM_H, "rmsnorm").unwrap_err().to_string();
            assert!(message.contains(part), "{to}: {message}");
        }
        let cases = [
            ("checked_by = \"element\"", "checked_by = \"bias\"", "checked_by"),
            ("a = \"a\"", "a = \"later\"", "`later`"),
            ("k = \"K\"", "k = \"K + 1\"", "`a`"),
            ("batch = \"1\"", "batch = \"batch\"", "circle"),
        ];
        for (from, to, part) in cases {
            assert!(MATMUL_TOML.contains(from), "{from}");
            let message =
                Operation::parse(&MATMUL_TOML.replacen(from, to, 1), MATMUL_H, "matmul").unwrap_err().to_string();
            assert!(message.contains(part), "{to}: {message}");
        }
    }

    #[test]
    fn sizes_and_work_follow_the_shape() {
        let op = Operation::load(&read, "matmul").unwrap();
        let shape = op.complete(&Shape::from([("M", 3), ("N", 5), ("K", 7)])).unwrap();
        assert_eq!(op.ints(&shape).unwrap(), [1, 3, 5, 7, 0, 0]);
        assert_eq!((op.flops(&shape).unwrap(), op.macs(&shape).unwrap()), (210, 105));
        assert_eq!(op.read_bytes(&shape, Dtype::F16).unwrap(), 2 * (21 + 35));
        assert_eq!(op.write_bytes(&shape, Dtype::F32).unwrap(), 4 * 15);
        let biased = op.complete(&shape.clone().with("has_bias", 1)).unwrap();
        assert_eq!(op.read_bytes(&biased, Dtype::Bf16).unwrap(), 2 * (21 + 35 + 5));
        assert_eq!(op.label(&shape), "3x5x7");
        assert_eq!(op.label(&biased.with("trans_b", 1).with("batch", 4)), "3x5x7 batch=4 trans_b has_bias");
        let shape = op.primary_shape().unwrap();
        assert_eq!(op.label(&shape), "256x256x256");
    }

    #[test]
    fn a_shape_that_makes_no_sense_is_refused() {
        let op = Operation::load(&read, "matmul").unwrap();
        for (shape, part) in [
            (Shape::from([("M", 3), ("N", 5)]), "`K` is missing"),
            (Shape::from([("M", 3), ("N", 5), ("K", -7)]), "not negative"),
            (Shape::from([("M", 0), ("N", 5), ("K", 7)]), "no elements"),
            (Shape::from([("M", i64::MAX), ("N", 5), ("K", 7)]), "too large"),
            (Shape::from([("M", 3), ("N", 5), ("K", 7), ("trans_b", 2)]), "does not satisfy"),
        ] {
            let message = op.complete(&shape).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn random_shapes_differ_and_are_valid() {
        let op = Operation::load(&read, "matmul").unwrap();
        let shapes: Vec<Shape> = (0..20).map(|seed| op.random_shape(seed).unwrap()).collect();
        assert!(shapes.iter().any(|shape| *shape != shapes[0]));
        assert!(shapes.iter().all(|shape| (1..=70).contains(&shape.get("K").unwrap())));
        assert_eq!(op.random_shape(5).unwrap(), shapes[5]);
    }
}
