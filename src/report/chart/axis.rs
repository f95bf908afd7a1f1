//! Axes: from values to pixels, and where ticks belong.

/// What a log scale can show at all.
const LEAST: f64 = 1e-90;
const MOST: f64 = 1e90;

/// How values are spread over pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Log,
}

/// Values from `low` to `high` on pixels from `start` to `end`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl Axis {
    /// `low` must lie below `high`, and above zero on a log scale: what does not is widened until it does.
    pub(super) fn new(scale: Scale, (low, high): (f64, f64), (start, end): (f64, f64)) -> Self {
        let (low, high) = if scale == Scale::Log { (low.max(LEAST), high.min(MOST)) } else { (low, high) };
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        Self { scale, low, high, start, end }
    }

    fn spread(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(LEAST).ln(),
        }
    }

    /// The pixel of a value; one beyond an end stands at the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let (low, high) = (self.spread(self.low), self.spread(self.high));
        let place = (self.spread(value.clamp(self.low, self.high)) - low) / (high - low);
        self.start + place * (self.end - self.start)
    }

    /// Round values for ticks, at most about `most`.
    pub(super) fn ticks(&self, most: usize) -> Vec<f64> {
        match self.scale {
            Scale::Linear => linear_ticks(self.low, self.high, most),
            Scale::Log => log_ticks(self.low, self.high, most),
        }
    }
}

/// Multiples of 1, 2 or 5 times a power of ten.
fn linear_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let rough = (high - low) / most.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|at| at as f64 * step).collect()
}

/// Digits of each decade, as many as there is room for; where even powers of ten are too many, every second or later.
fn log_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let within = |digits: &[f64], step: i32| -> Vec<f64> {
        (first..=last)
            .filter(|power| power % step == 0)
            .flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)))
            .filter(|value| *value >= low * 0.999 && *value <= high * 1.001)
            .collect()
    };
    let sets: [&[f64]; 5] = [
        &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
        &[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
        &[1.0, 2.0, 5.0],
        &[1.0, 3.0],
        &[1.0],
    ];
    let fitting = sets.iter().map(|set| within(set, 1)).find(|ticks| ticks.len() <= most);
    fitting.unwrap_or_else(|| {
        (2..=20).map(|step| within(&[1.0], step)).find(|ticks| ticks.len() <= most).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_within_the_axis_and_few() {
        let ticks = |scale, low, high, most| Axis::new(scale, (low, high), (0.0, 1.0)).ticks(most);
        assert_eq!(ticks(Scale::Linear, 0.5, 14.5, 6), [5.0, 10.0]);
        let fifths: Vec<_> = ticks(Scale::Linear, 0.5, 1.5, 6).iter().map(|tick| format!("{tick:.2}")).collect();
        assert_eq!(fifths, ["0.60", "0.80", "1.00", "1.20", "1.40"]);
        assert_eq!(ticks(Scale::Log, 0.9, 12.0, 5), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(ticks(Scale::Log, 1e-3, 1e9, 5).len(), 5);
        for (low, high) in [(0.1, 0.1001), (1e-9, 1e9), (3.0, 4.0), (0.5, 2000.5)] {
            for scale in [Scale::Linear, Scale::Log] {
                for most in [3, 6, 12] {
                    let found = ticks(scale, low, high, most);
                    assert!(found.len() <= most + 1, "{low} {high} {most}: {found:?}");
                    let least = if scale == Scale::Log { low * 0.998 } else { low - 1e-6 * (high - low) };
                    assert!(found.iter().all(|tick| *tick >= least && *tick <= high * 1.002), "{found:?}");
                }
            }
        }
    }

    #[test]
    fn values_stand_where_they_belong_and_never_outside() {
        let axis = Axis::new(Scale::Log, (1.0, 100.0), (200.0, 0.0));
        assert_eq!(
            [axis.at(1.0), axis.at(10.0), axis.at(100.0), axis.at(1e9), axis.at(0.0)],
            [200.0, 100.0, 0.0, 0.0, 200.0]
        );
        let flat = Axis::new(Scale::Linear, (1.0, 1.0), (0.0, 10.0));
        assert!((0.0..=10.0).contains(&flat.at(1.0)));
    }
}
