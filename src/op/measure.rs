//! An operation at a shape: sizes, arguments, work, and its short name.

use std::collections::BTreeMap;

use super::draw::share_of_groups_with_rows;
use super::{
    Adversarial, Case, Distribution, Draw, Dtype, FewTerms, OpError, Operation, OracleKind, Pass, Role, Scalar, Shape,
    TensorSpec, Tolerance,
};
use crate::defence::Defence;
use crate::expr::Expr;
use crate::rng::Stream;

impl Operation {
    /// `shape` with what it leaves out filled in from the defaults.
    ///
    /// # Errors
    /// A symbol the operation does not have, one that is missing and has no default, a negative value,
    /// a tensor without elements, or a shape outside `requires`.
    pub fn complete(&self, shape: &Shape) -> Result<Shape, OpError> {
        let fail = |what: String| self.refuse(shape, what);
        if let Some(symbol) = shape.0.keys().find(|symbol| !self.symbols.contains(symbol)) {
            return Err(fail(format!("`{symbol}` is not one of its symbols ({})", self.symbols.join(", "))));
        }
        let mut full = shape.clone();
        loop {
            let missing: Vec<&String> = self.symbols.iter().filter(|symbol| full.get(symbol).is_none()).collect();
            if missing.is_empty() {
                break;
            }
            let mut progress = false;
            for symbol in missing {
                let Some(default) = self.defaults.get(symbol) else {
                    return Err(fail(format!("`{symbol}` is missing and has no default")));
                };
                if default.names().iter().all(|name| full.get(name).is_some() || !self.has_symbol(name)) {
                    let value = self.integer(&format!("default of {symbol}"), default, &full)?;
                    full.0.insert(symbol.clone(), value);
                    progress = true;
                }
            }
            if !progress {
                return Err(fail("defaults depend on each other in a circle".into()));
            }
        }
        if let Some((symbol, value)) = full.0.iter().find(|(_, value)| **value < 0) {
            return Err(fail(format!("`{symbol}` is {value}; sizes are not negative")));
        }
        if let Some(requires) = &self.requires
            && self.integer("requires", requires, &full)? == 0
        {
            return Err(fail(format!("it does not satisfy `{requires}`")));
        }
        for tensor in &self.tensors {
            if self.present(tensor, &full)? && self.elements(tensor, &full)? == 0 {
                return Err(fail(format!("tensor `{}` has no elements", tensor.name)));
            }
        }
        Ok(full)
    }

    /// Useful floating-point operations of one call.
    ///
    /// # Errors
    /// An expression that fails for this (complete) shape; the same for all methods below.
    pub fn flops(&self, shape: &Shape) -> Result<u64, OpError> {
        let flops = self.integer("flops", &self.flops, shape)?;
        u64::try_from(flops).map_err(|_| self.refuse(shape, format!("flops are {flops}")))
    }

    /// Multiply-adds of one call: half the operations.
    pub fn macs(&self, shape: &Shape) -> Result<u64, OpError> {
        Ok(self.flops(shape)? / 2)
    }

    /// Compulsory bytes read: each present input once, and of a matrix for each group of rows those of groups that have rows.
    pub fn read_bytes(&self, shape: &Shape, dtype: Dtype) -> Result<u64, OpError> {
        self.bytes(Role::Input, shape, dtype, &|tensor| self.share_read(tensor, shape))
    }

    /// Bytes of the present inputs.
    pub fn input_bytes(&self, shape: &Shape, dtype: Dtype) -> Result<u64, OpError> {
        self.bytes(Role::Input, shape, dtype, &|_| Ok(1.0))
    }

    /// Compulsory bytes written: each output once.
    pub fn write_bytes(&self, shape: &Shape, dtype: Dtype) -> Result<u64, OpError> {
        self.bytes(Role::Output, shape, dtype, &|_| Ok(1.0))
    }

    fn bytes(
        &self,
        role: Role,
        shape: &Shape,
        dtype: Dtype,
        share: &dyn Fn(&TensorSpec) -> Result<f64, OpError>,
    ) -> Result<u64, OpError> {
        let mut total = 0;
        for tensor in self.tensors.iter().filter(|tensor| tensor.role == role) {
            if self.present(tensor, shape)? {
                let bytes = (self.elements(tensor, shape)? * tensor.dtype.bytes(dtype)) as f64;
                total += (bytes * share(tensor)?) as u64;
            }
        }
        Ok(total)
    }

    /// Which part of a tensor has to be read: of one that has a matrix for each group of rows, those of groups that have any, as ends are drawn.
    fn share_read(&self, tensor: &TensorSpec, shape: &Shape) -> Result<f64, OpError> {
        let drawn_as_ends = |one: &&TensorSpec| one.draw.as_ref().is_some_and(|draw| draw.dist == Distribution::Ends);
        let Some(ends) = self.tensors.iter().find(drawn_as_ends) else { return Ok(1.0) };
        let (dims, groups) = (self.dimensions(tensor, shape)?, self.elements(ends, shape)?);
        let rows = ends.draw.as_ref().and_then(|draw| draw.scale.as_ref());
        match rows {
            Some(rows) if dims.len() == 3 && dims[0] == groups => {
                let rows = self.integer(&format!("scale of {}", ends.name), rows, shape)?;
                Ok(share_of_groups_with_rows(groups, rows as f64))
            }
            _ => Ok(1.0),
        }
    }

    /// A tensor's dimensions.
    pub fn dimensions(&self, tensor: &TensorSpec, shape: &Shape) -> Result<Vec<usize>, OpError> {
        let place = format!("shape of {}", tensor.name);
        tensor
            .shape
            .iter()
            .map(|dimension| {
                let size = self.integer(&place, dimension, shape)?;
                usize::try_from(size).map_err(|_| self.refuse(shape, format!("{place}: `{dimension}` is {size}")))
            })
            .collect()
    }

    /// A tensor's elements, as if it were present.
    pub fn elements(&self, tensor: &TensorSpec, shape: &Shape) -> Result<usize, OpError> {
        // A bound well below usize::MAX keeps every later product with a byte size from overflowing.
        const MOST: usize = 1 << 48;
        self.dimensions(tensor, shape)?
            .iter()
            .try_fold(1usize, |n, &size| n.checked_mul(size).filter(|&n| n <= MOST))
            .ok_or_else(|| self.refuse(shape, format!("tensor `{}` is too large", tensor.name)))
    }

    /// Elements of all present tensors together.
    pub fn all_elements(&self, shape: &Shape) -> Result<u64, OpError> {
        let mut total = 0;
        for tensor in &self.tensors {
            if self.present(tensor, shape)? {
                total += self.elements(tensor, shape)? as u64;
            }
        }
        Ok(total)
    }

    /// Bytes of memory for the tensors of a case and for the doubles by which all of its outputs are compared: values and
    /// terms of what each pass yields and of the factors of products.
    pub fn judged_bytes(&self, shape: &Shape, dtype: Dtype) -> Result<u64, OpError> {
        let tensors = self.input_bytes(shape, dtype)?.saturating_add(self.write_bytes(shape, dtype)?);
        let mut doubles = 0_u64;
        for pass in &self.passes {
            match pass {
                Pass::Items(items) => {
                    for out in &items.out {
                        doubles = doubles.saturating_add(self.size(&out.name, &out.size, shape)? as u64);
                    }
                }
                Pass::Product(product) => {
                    let factors = [&product.a, &product.b].into_iter().filter_map(|factor| self.tensor(factor));
                    for factor in factors {
                        doubles = doubles.saturating_add(self.elements(factor, shape)? as u64);
                    }
                    doubles = doubles.saturating_add(self.product_elements(product, shape)? as u64);
                }
            }
        }
        // An oracle in PyTorch has no passes: its doubles, and those of what lies between, are guessed by the tensors.
        if self.passes.is_empty() {
            doubles = self.all_elements(shape)?;
        }
        Ok(tensors.saturating_add(doubles.saturating_mul(16)))
    }

    /// Whether the tensor is there at this shape; the kernel receives NULL where it is not.
    pub fn present(&self, tensor: &TensorSpec, shape: &Shape) -> Result<bool, OpError> {
        match &tensor.present {
            None => Ok(true),
            Some(condition) => Ok(self.integer(&format!("presence of {}", tensor.name), condition, shape)? != 0),
        }
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorSpec> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Values of the floating-point arguments, in order: the floats a kernel receives.
    pub fn scalars(&self, shape: &Shape) -> Result<Vec<f32>, OpError> {
        self.scalars
            .iter()
            .map(|scalar| Ok(self.double(&format!("scalar {}", scalar.name), &scalar.value, shape)? as f32))
            .collect()
    }

    /// The same for a case, which may have other values.
    ///
    /// # Errors
    /// An expression that fails at the case's shape.
    pub fn scalars_of(&self, case: &Case) -> Result<Vec<f32>, OpError> {
        let value = |scalar: &Scalar| {
            let number = |value: &Expr| self.double(&format!("scalar {}", scalar.name), value, &case.shape);
            match (case.setting.checked_sub(1), &scalar.others[..], &scalar.range) {
                (Some(at), _, Some([low, high])) if at >= self.other_settings() => {
                    let (low, high) = (number(low)?, number(high)?);
                    Ok(low * (high / low).powf(Stream::new(u64::from(at), &scalar.name).uniform(0)))
                }
                (Some(at), others, _) if !others.is_empty() => number(&others[at as usize % others.len()]),
                _ => number(&scalar.value),
            }
        };
        self.scalars.iter().map(|scalar| Ok(value(scalar)? as f32)).collect()
    }

    /// Values of the symbols, in order: the 64-bit integers a kernel receives.
    pub fn ints(&self, shape: &Shape) -> Result<Vec<i64>, OpError> {
        self.symbols
            .iter()
            .map(|symbol| shape.get(symbol).ok_or_else(|| self.refuse(shape, format!("`{symbol}` is missing"))))
            .collect()
    }

    /// A short form for people: sizes in symbol order, then what differs from the defaults: `2048x2048x2048 trans_b`.
    #[must_use]
    pub fn label(&self, shape: &Shape) -> String {
        if self.symbols.is_empty() {
            return shape.to_string();
        }
        let mut sizes = Vec::new();
        let mut others = String::new();
        for symbol in &self.symbols {
            let Some(value) = shape.get(symbol) else { continue };
            match self.defaults.get(symbol) {
                None => sizes.push(value.to_string()),
                Some(default) => match default.int(&|name| shape.get(name)) {
                    Ok(usual) if usual == value => {}
                    Ok(0) if value == 1 => others += &format!(" {symbol}"),
                    _ => others += &format!(" {symbol}={value}"),
                },
            }
        }
        format!("{}{others}", sizes.join("x"))
    }

    /// The shape that the sweep's results are quoted for, complete.
    pub fn primary_shape(&self) -> Result<Shape, OpError> {
        let shape = self.sweep.get(self.primary).ok_or_else(|| OpError::Invalid {
            file: format!("{}.toml", self.name),
            what: format!("primary = {} but the sweep has {} shapes", self.primary, self.sweep.len()),
        })?;
        self.complete(shape)
    }

    /// A shape drawn from the ranges of `random`, complete, satisfying `requires`.
    ///
    /// # Errors
    /// Where 1000 draws find none that is valid.
    pub fn random_shape(&self, seed: u64) -> Result<Shape, OpError> {
        let stream = Stream::new(seed, "shape");
        let mut last = None;
        for attempt in 0..1000u64 {
            let mut shape = Shape::default();
            for (index, (symbol, (low, high))) in self.random.iter().enumerate() {
                let span = (high - low).unsigned_abs() + 1;
                let offset = stream.below(attempt * 64 + index as u64, span);
                shape.0.insert(symbol.clone(), low + offset as i64);
            }
            match self.complete(&shape) {
                Ok(shape) => return Ok(shape),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| self.refuse(&Shape::default(), "no random shape".into())))
    }

    /// How `tensor` is drawn for this case: its own way, or the adversarial input's; `None` for outputs.
    ///
    /// # Errors
    /// An adversarial input the operation does not have.
    pub fn draw_of<'a>(&'a self, tensor: &'a TensorSpec, case: &Case) -> Result<Option<&'a Draw>, OpError> {
        let Some(input) = &case.input else { return Ok(tensor.draw.as_ref()) };
        let adversarial = self
            .hostile_inputs()
            .find(|adversarial| adversarial.name == *input)
            .ok_or_else(|| self.refuse(&case.shape, format!("no adversarial input `{input}`")))?;
        Ok(adversarial.draw.get(&tensor.name).or(tensor.draw.as_ref()))
    }

    /// The adversarial inputs, and each among ordinary values.
    pub fn hostile_inputs(&self) -> impl Iterator<Item = &Adversarial> {
        let mixed = if Defence::MixedInputs.stands() { &self.mixed[..] } else { &[] };
        self.adversarial.iter().chain(mixed)
    }

    /// Whether an adversarial input has a defined result at a (complete) shape: where it requires nothing that does not hold there,
    /// and a tensor that it draws is there.
    ///
    /// # Errors
    /// An expression that fails at this shape.
    pub fn is_defined(&self, hostile: &Adversarial, shape: &Shape) -> Result<bool, OpError> {
        if let Some(requires) = &hostile.requires
            && self.integer(&format!("{}, requires", hostile.name), requires, shape)? == 0
        {
            return Ok(false);
        }
        let mut drawn = hostile.draw.keys().filter_map(|name| self.tensor(name)).peekable();
        if drawn.peek().is_none() {
            return Ok(true);
        }
        for tensor in drawn {
            if self.present(tensor, shape)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How many settings the floating-point arguments have beside the operation's own.
    #[must_use]
    pub fn other_settings(&self) -> u32 {
        self.scalars.iter().map(|scalar| scalar.others.len()).max().unwrap_or(0) as u32
    }

    /// A setting for drawn bits: the operation's own, one of the listed ones, or one whose values are drawn, each of these as often.
    #[must_use]
    pub fn drawn_setting(&self, bits: u64) -> u32 {
        let listed = self.other_settings();
        let drawn = if self.scalars.iter().any(|scalar| scalar.range.is_some()) { listed.max(1) } else { 0 };
        let kinds = u64::from(1 + listed + drawn);
        match (bits % kinds) as u32 {
            known if known <= listed => known,
            _ => listed + 1 + (bits / kinds % (1 << 20)) as u32,
        }
    }

    /// The bounds of a case's input, where it has its own.
    #[must_use]
    pub fn few_terms(&self, case: &Case) -> Option<&FewTerms> {
        let input = case.input.as_ref()?;
        self.adversarial.iter().find(|adversarial| adversarial.name == *input)?.few_terms.as_ref()
    }

    /// L of the tolerance: the bound of the relative rms error for `dtype`.
    pub fn rms_bound(&self, shape: &Shape, dtype: Dtype) -> Result<f64, OpError> {
        let tolerance = self.tolerance()?;
        let bound = match dtype {
            Dtype::F16 => &tolerance.f16,
            Dtype::Bf16 => &tolerance.bf16,
            Dtype::F32 => &tolerance.f32,
        };
        self.double(&format!("tolerance {dtype}"), bound, shape)
    }

    /// The tolerance of an operation with a header.
    ///
    /// # Errors
    /// An operation whose oracle is PyTorch has none.
    pub fn tolerance(&self) -> Result<&Tolerance, OpError> {
        self.tolerance.as_ref().ok_or_else(|| OpError::Invalid {
            file: format!("reference/{}.toml", self.name),
            what: "it has no tolerance: its oracle is PyTorch, whose own error is the bound".into(),
        })
    }

    /// Whether the oracle knows whole outputs only: nothing says what a function in Python needs for one element.
    #[must_use]
    pub fn knows_only_wholes(&self) -> bool {
        self.oracle == OracleKind::Torch
    }

    /// An expression of the symbols, in integers; `place` names the key for the error.
    pub(crate) fn integer(&self, place: &str, expr: &Expr, shape: &Shape) -> Result<i64, OpError> {
        expr.int(&|name| shape.get(name)).map_err(|source| self.explain(place, shape, source))
    }

    /// The same as a size: not negative.
    pub(crate) fn size(&self, place: &str, expr: &Expr, shape: &Shape) -> Result<usize, OpError> {
        let value = self.integer(place, expr, shape)?;
        usize::try_from(value).map_err(|_| self.refuse(shape, format!("{place}: `{expr}` is {value}")))
    }

    /// The same in doubles.
    pub(crate) fn double(&self, place: &str, expr: &Expr, shape: &Shape) -> Result<f64, OpError> {
        expr.float(&|name| shape.get(name).map(|value| value as f64))
            .map_err(|source| self.explain(place, shape, source))
    }

    pub(super) fn refuse(&self, shape: &Shape, what: String) -> OpError {
        OpError::Shape { op: self.name.clone(), shape: shape.to_string(), what }
    }

    pub(super) fn has_symbol(&self, name: &str) -> bool {
        self.symbols.iter().any(|symbol| symbol == name)
    }

    /// Defaulted symbols whose value is their default at this shape.
    pub(super) fn following(&self, shape: &Shape) -> BTreeMap<&str, &Expr> {
        self.defaults
            .iter()
            .filter(|(symbol, default)| default.int(&|name| shape.get(name)).ok() == shape.get(symbol))
            .map(|(symbol, default)| (symbol.as_str(), default))
            .collect()
    }

    fn explain(&self, place: &str, shape: &Shape, source: crate::expr::ExprError) -> OpError {
        OpError::Expression { op: self.name.clone(), place: format!("{place} at {shape}"), source }
    }
}
