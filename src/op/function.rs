//! The function that a kernel file in C defines.

use super::{Operation, Role};

impl Operation {
    /// Its declaration, without the scratch buffers of a file of its own, which come after the tensors.
    #[must_use]
    pub fn c_function(&self) -> String {
        let tensors = self.tensors.iter().map(|tensor| {
            let constant = if tensor.role == Role::Input { "const " } else { "" };
            format!("{constant}{} *{}", tensor.dtype.c_name(), tensor.name)
        });
        let symbols = self.symbols.iter().map(|symbol| format!("int64_t {symbol}"));
        let scalars = self.scalars.iter().map(|scalar| format!("float {}", scalar.name));
        let all: Vec<String> = tensors.chain(symbols).chain(scalars).collect();
        format!("void {}({});", self.name, all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Operation;
    use super::super::samples::{RMSNORM_H, RMSNORM_TOML};

    #[test]
    fn the_function_takes_tensors_then_symbols_then_scalars() {
        let op = Operation::parse(RMSNORM_TOML, RMSNORM_H, "rmsnorm").unwrap();
        let wanted = "void rmsnorm(const T *x, const T *weight, T *y, int64_t rows, int64_t cols, float eps);";
        assert_eq!(op.c_function(), wanted);
    }
}
