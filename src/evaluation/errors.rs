//! What a distance from the oracle means, in words.

// `!(a <= b)` is how a comparison is written here, so that NaN fails.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

use super::ErrorStats;

impl ErrorStats {
    /// Whether no error is more than `leeway` times its bound.
    #[must_use]
    pub fn within(&self, leeway: f64) -> bool {
        self.worst <= leeway
            && self.tensor_ratio <= leeway
            && self.row_ratio <= leeway
            && self.misrounded_ratio <= leeway
            && self.lost_ratio <= leeway
            && self.side_ratio <= leeway
            && self.bias_ratio <= leeway
    }

    /// Whether no error is more than its bound, but for the rms error of a tensor, which may be `times` as much.
    #[must_use]
    pub fn within_but_for_rms(&self, times: f64) -> bool {
        Self { tensor_ratio: self.tensor_ratio / times, ..self.clone() }.within(1.0)
    }

    /// Why an output is wrong, in a sentence; `None` where it passed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        // Where nothing but zero belongs, no error is relative to it.
        let relative = match self.relative_rms {
            f64::MAX => "infinite".to_owned(),
            relative => format!("{relative:.2e}"),
        };
        let of = |output: &Option<String>| output.as_ref().map_or(String::new(), |name| format!(" of `{name}`"));
        if self.outside > 0 || !(self.worst <= 1.0) {
            let alike = |places| Number(self.got, places).to_string() == Number(self.want, places).to_string();
            let places = if alike(PLACES) { MORE_PLACES } else { PLACES };
            return Some(format!(
                "{} of {} elements are outside their bound; the worst is element {}{}: {} where {} belongs ({} times the bound; relative rms error {relative})",
                self.outside,
                self.elements,
                self.worst_at,
                of(&self.outputs.element),
                Number(self.got, places),
                Number(self.want, places),
                Number(self.worst, PLACES),
            ));
        }
        if !(self.tensor_ratio <= 1.0) {
            return Some(format!(
                "each element{} is near, but together they are {:.2} times as far off as an honest kernel may be (relative rms error {relative})",
                of(&self.outputs.tensor),
                self.tensor_ratio
            ));
        }
        if !(self.row_ratio <= 1.0) {
            return Some(format!(
                "one row{} is {:.2} times as far off as an honest kernel may be (relative rms error of the whole {relative})",
                of(&self.outputs.row),
                self.row_ratio
            ));
        }
        if !(self.bias_ratio <= 1.0) {
            return Some(format!(
                "each element is near, but they are off in one direction: together {:.2} times as far as an honest kernel may be (relative rms error {relative})",
                self.bias_ratio
            ));
        }
        if !(self.lost_ratio <= 1.0) {
            return Some(format!(
                "{} of {} elements, small beside their rows, are off by half of what they are or more: {:.1} times as many as of an honest kernel",
                self.lost, self.elements, self.lost_ratio
            ));
        }
        if !(self.misrounded_ratio <= 1.0) {
            return Some(format!(
                "{} of {} elements are not the nearest number of their type, {:.1} times as many as of a kernel that computes in single precision and rounds once",
                self.misrounded, self.elements, self.misrounded_ratio
            ));
        }
        if !(self.side_ratio <= 1.0) {
            let [nearer, further] = self.sides;
            return Some(format!(
                "{nearer} elements are nearer to zero than they should be and {further} further away: results are not rounded to the \
                 nearest number of their type but to one side"
            ));
        }
        None
    }
}

/// Digits behind the point that usually tell two values apart, and those that always do in single precision.
const PLACES: usize = 5;
const MORE_PLACES: usize = 9;

/// A value as people read it: few digits behind the point, and an exponent only where it helps.
struct Number(f64, usize);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(value, places) = *self;
        let size = value.abs();
        if size == f64::MAX {
            f.write_str("infinitely many")
        } else if size == 0.0 || (1e-3..1e5).contains(&size) || !value.is_finite() {
            write!(f, "{value:.places$}")
        } else {
            write!(f, "{value:.*e}", places - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::WorstOutputs;
    use super::*;

    fn wrong(got: f64, want: f64) -> ErrorStats {
        ErrorStats {
            elements: 8,
            outside: 1,
            worst: 7.25,
            worst_at: 3,
            got,
            want,
            relative_rms: 3.58e-6,
            ..ErrorStats::default()
        }
    }

    #[test]
    fn two_values_that_differ_are_written_so_that_they_do() {
        let far = wrong(-1.375, -0.26196).failure().unwrap();
        assert!(far.contains("element 3: -1.37500 where -0.26196 belongs (7.25000 times"), "{far}");
        let near = wrong(-0.558_051_1, -0.558_053_2).failure().unwrap();
        assert!(near.contains("-0.558051100 where -0.558053200 belongs (7.25000 times"), "{near}");
        let tiny = wrong(1.234_567_8e-7, 1.234_568_9e-7).failure().unwrap();
        assert!(tiny.contains("1.23456780e-7 where 1.23456890e-7 belongs"), "{tiny}");
    }

    #[test]
    fn where_there_are_several_outputs_the_sentence_names_the_one_that_is_wrong() {
        let name = |name: &str| Some(name.to_owned());
        let outputs = WorstOutputs { element: name("mean"), tensor: name("losses"), row: name("rows") };
        let element = ErrorStats { outputs, ..wrong(1.0, 2.0) };
        let tensor = ErrorStats { outside: 0, worst: 0.5, tensor_ratio: 3.0, ..element.clone() };
        let row = ErrorStats { tensor_ratio: 0.5, row_ratio: 3.0, ..tensor.clone() };
        for (stats, part) in [
            (element, "the worst is element 3 of `mean`: 1.00000 where"),
            (tensor, "each element of `losses` is near, but together"),
            (row, "one row of `rows` is 3.00 times"),
        ] {
            let said = stats.failure().unwrap();
            assert!(said.contains(part), "{said}");
            let unnamed = ErrorStats { outputs: WorstOutputs::default(), ..stats }.failure().unwrap();
            assert!(!unnamed.contains('`'), "{unnamed}");
        }
    }

    #[test]
    fn an_rms_error_may_be_excused_and_nothing_else() {
        let honest = ErrorStats { worst: 0.5, tensor_ratio: 1.3, ..ErrorStats::default() };
        assert!(!honest.within(1.0) && honest.within_but_for_rms(1.4));
        for off in [
            ErrorStats { tensor_ratio: 1.5, ..honest.clone() },
            ErrorStats { worst: 1.1, ..honest.clone() },
            ErrorStats { row_ratio: 1.1, ..honest.clone() },
            ErrorStats { tensor_ratio: f64::NAN, ..honest },
        ] {
            assert!(!off.within_but_for_rms(1.4), "{off:?}");
        }
    }

    #[test]
    fn a_journal_from_before_outputs_were_named_is_read_and_one_output_is_not_named() {
        let text = serde_json::to_string(&wrong(1.0, 2.0)).unwrap();
        assert!(!text.contains("outputs"), "{text}");
        assert_eq!(serde_json::from_str::<ErrorStats>(&text).unwrap(), wrong(1.0, 2.0));
        let outputs = WorstOutputs { element: Some("mean".into()), ..WorstOutputs::default() };
        let named = ErrorStats { outputs, ..wrong(1.0, 2.0) };
        let text = serde_json::to_string(&named).unwrap();
        assert_eq!(serde_json::from_str::<ErrorStats>(&text).unwrap(), named, "{text}");
    }

    #[test]
    fn an_error_beyond_all_measure_is_said_in_words() {
        let error = ErrorStats { worst: f64::MAX, relative_rms: f64::MAX, ..wrong(f64::NAN, 0.0) }.failure().unwrap();
        assert!(
            error.ends_with("NaN where 0.00000 belongs (infinitely many times the bound; relative rms error infinite)"),
            "{error}"
        );
    }
}
