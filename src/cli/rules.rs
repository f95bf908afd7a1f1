//! The flags for when a target ends, and when the run does.

use std::time::Duration;

use crate::engine::stop::{Rules, next_time_of_day};
use crate::workspace::duration;

/// When a target ends, and when the run does.
#[derive(Debug, clap::Args)]
pub(super) struct RuleArgs {
    /// Leave a target after N experiments in a row that were not kept [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_reverts: Option<u32>,
    /// Leave a target at this percentage of its roofline [default: 90]
    #[arg(long, value_name = "PERCENT", value_parser = above_zero, allow_negative_numbers = true)]
    roofline: Option<f64>,
    /// Leave a target at this speedup against what you have today [default: 2]; a run with a budget or an hour goes on
    /// with it when nothing else is left
    #[arg(long, value_name = "X", value_parser = above_zero, allow_negative_numbers = true)]
    speedup: Option<f64>,
    /// Leave a target after this time [default: 2h]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    per_kernel: Option<Duration>,
    /// Examine what would be kept for this time [default: 20s, less where the budget is short]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    examination: Option<Duration>,
    /// End the run after this time, such as 8h or 90m; what is being judged then is finished first [default: none, or
    /// `budget` in warpsmith.toml]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget: Option<Duration>,
    /// End the run at this time of day, such as 07:00; a `budget` in warpsmith.toml does not hold then
    #[arg(long, value_name = "HH:MM")]
    until: Option<String>,
}

impl RuleArgs {
    /// Puts the rules that were given over those there are.
    pub(super) fn override_rules(&self, rules: &mut Rules) -> anyhow::Result<()> {
        let until = self.until.as_deref().map(|text| next_time_of_day(text, &jiff::Zoned::now())).transpose()?;
        rules.max_reverts = self.max_reverts.or(rules.max_reverts);
        rules.roofline_pct = self.roofline.or(rules.roofline_pct);
        rules.speedup = self.speedup.or(rules.speedup);
        rules.per_kernel = self.per_kernel.or(rules.per_kernel);
        rules.examination = self.examination.or(rules.examination);
        // Who says until when has not asked for the settings' budget as well: a night would end after it.
        rules.budget = if until.is_some() { self.budget } else { self.budget.or(rules.budget) };
        // Nor has who gives a budget asked for the time of day that a run was begun with, which may be past as it is resumed.
        rules.until = until.or(rules.until.filter(|_| self.budget.is_none()));
        Ok(())
    }
}

fn above_zero(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0);
    value.ok_or("it must be a number above zero".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;
    use crate::engine::stop::Moment;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        rules: RuleArgs,
    }

    /// The budget, and whether there is a time of day, where the settings say three minutes.
    fn of(line: &[&str]) -> (Option<u64>, bool) {
        over(line, None)
    }

    /// The same of a run that was begun with a time of day.
    fn over(line: &[&str], until: Option<Moment>) -> (Option<u64>, bool) {
        let given = Line::parse_from([&["run"], line].concat()).rules;
        let mut rules = Rules {
            max_reverts: None,
            roofline_pct: None,
            speedup: None,
            per_kernel: None,
            examination: None,
            budget: Some(Duration::from_secs(180)),
            until,
            max_tokens: None,
            max_cost: None,
        };
        given.override_rules(&mut rules).unwrap();
        (rules.budget.map(|budget| budget.as_secs()), rules.until.is_some())
    }

    #[test]
    fn a_time_of_day_sets_the_budget_of_the_settings_aside() {
        assert_eq!(of(&[]), (Some(180), false));
        assert_eq!(of(&["--budget", "1h"]), (Some(3600), false));
        assert_eq!(of(&["--until", "07:00"]), (None, true));
        assert_eq!(of(&["--until", "07:00", "--budget", "1h"]), (Some(3600), true));
    }

    #[test]
    fn a_budget_sets_the_time_of_day_aside_that_a_run_was_begun_with() {
        let past = Some(Moment(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(over(&["--budget", "1h"], past), (Some(3600), false));
        assert_eq!(over(&["--max-reverts", "3"], past), (Some(180), true));
    }
}
