//! Where the matrices of a trusted product lie.

use super::{OpError, Operation, Pass, ProductPass, Role, Shape};
use crate::expr::Expr;

/// The name of a matrix's number in the expressions of a product pass.
pub(super) const MATRIX: &str = "z";

/// A product pass at a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProductLayout {
    /// Number of products.
    pub batch: usize,
    /// Rows of `a` and of the product.
    pub m: usize,
    /// Columns of the product.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Whether `b` is stored as `[n,k]`.
    pub trans_b: bool,
    /// The left factor: `m` rows of `k`.
    pub a: Matrices,
    /// The right factor: `k` rows of `n`, or `n` rows of `k` where transposed.
    pub b: Matrices,
    /// The product: `m` rows of `n`.
    pub out: Matrices,
}

/// Where the matrices of one side lie, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrices {
    /// First element of each.
    pub starts: Vec<usize>,
    /// From one row to the next.
    pub step: usize,
    /// Rows as they are stored.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
}

impl Matrices {
    /// Whether they lie one after the other without gaps.
    #[must_use]
    pub fn contiguous(&self) -> bool {
        let one = self.rows * self.columns;
        self.step == self.columns && self.starts.iter().enumerate().all(|(z, start)| *start == z * one)
    }

    /// One more than the last element that belongs to any.
    #[must_use]
    pub fn end(&self) -> usize {
        let last = self.starts.iter().max().copied().unwrap_or(0);
        if self.rows == 0 || self.columns == 0 { 0 } else { last + (self.rows - 1) * self.step + self.columns }
    }

    /// Elements of all matrices together.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.starts.len() * self.rows * self.columns
    }
}

impl Operation {
    /// The matrices of a product pass at a (complete) shape.
    ///
    /// # Errors
    /// An expression that fails, or gives a negative size or place.
    pub fn product_layout(&self, pass: &ProductPass, shape: &Shape) -> Result<ProductLayout, OpError> {
        let place = format!("product {}", pass.out);
        let size = |expr: &Expr| self.size(&place, expr, shape);
        let (batch, m, n, k) = (size(&pass.batch)?, size(&pass.m)?, size(&pass.n)?, size(&pass.k)?);
        let trans_b = self.integer(&place, &pass.trans_b, shape)? != 0;
        let side = |at: &Option<Expr>, step: &Option<Expr>, rows: usize, columns: usize| {
            let starts = match at {
                None => (0..batch).map(|z| z * rows * columns).collect(),
                Some(at) => self.starts(&place, at, batch, shape)?,
            };
            let step = step.as_ref().map_or(Ok(columns), size)?;
            Ok::<_, OpError>(Matrices { starts, step, rows, columns })
        };
        let (b_rows, b_columns) = if trans_b { (n, k) } else { (k, n) };
        Ok(ProductLayout {
            batch,
            m,
            n,
            k,
            trans_b,
            a: side(&pass.a_at, &pass.a_step, m, k)?,
            b: side(&pass.b_at, &pass.b_step, b_rows, b_columns)?,
            out: side(&pass.out_at, &pass.out_step, m, n)?,
        })
    }

    /// Elements of a product at a (complete) shape.
    ///
    /// # Errors
    /// An expression that fails, or gives a negative size.
    pub(crate) fn product_elements(&self, pass: &ProductPass, shape: &Shape) -> Result<usize, OpError> {
        let place = format!("product {}", pass.out);
        let size = |expr: &Expr| self.size(&place, expr, shape);
        Ok(size(&pass.batch)?.saturating_mul(size(&pass.m)?).saturating_mul(size(&pass.n)?))
    }

    /// Where each of so many matrices begins: there may be hundreds of thousands.
    fn starts(&self, place: &str, at: &Expr, batch: usize, shape: &Shape) -> Result<Vec<usize>, OpError> {
        let bound = at.bound(&|name| if name == MATRIX { None } else { shape.get(name) });
        let start = |z: usize| {
            let start = bound.int(&|name| (name == MATRIX).then_some(z as i64));
            let start = start.ok().and_then(|start| usize::try_from(start).ok());
            // With all names, for what is wrong.
            start.map_or_else(|| self.size(place, at, &shape.clone().with(MATRIX, z as i64)), Ok)
        };
        (0..batch).map(start).collect()
    }

    /// Whether anything asks for the terms of a product: it is an output, a later product's factor, or the header reads them.
    #[must_use]
    pub fn wants_terms(&self, pass: &ProductPass) -> bool {
        let out = &pass.out;
        let factor = self.passes.iter().any(|other| matches!(other, Pass::Product(p) if p.a == *out || p.b == *out));
        let output = self.tensor(out).is_some_and(|tensor| tensor.role == Role::Output);
        let header: String = self.header.split_whitespace().collect();
        output || factor || header.contains(&format!("ws_get_abs({out},"))
    }
}
