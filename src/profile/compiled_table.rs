//! A compiled PyTorch model's parts as text.

use super::amdahl::{gain, in_words};
use super::compiled::{Compiled, CompiledRow};

/// What is said of a place in the source at the most.
const PLACE: usize = 60;

/// So many kernels of no part are named at the most.
const MOST_NAMED: usize = 4;

impl Compiled {
    /// The passes, then a row for each part with its place in the source, then what is not explained, and notes.
    #[must_use]
    pub fn table(&self) -> String {
        let it = &self.captured;
        let graph = |us: Option<f64>| us.map_or(String::new(), |us| format!(", as a CUDA graph {}", ms(us)));
        let (eager, graph) = (graph(it.eager_graph_us), graph(it.graph_us));
        let tuned = it.autotune_us.map_or(String::new(), |us| format!(" · max-autotune {}", ms(us)));
        let mut text = format!(
            "{} · {} weights, {} · {} · PyTorch {} ({} threads)\n\
             one pass: eager {}{eager} · compiled {}{graph}{tuned}   ({} passes timed; graphs captured in {:.1} s, compiled in {:.0} s)\n\
             last columns: how much faster {} gets when that row alone takes a half of its time, or none\n\n",
            self.model,
            count(it.parameters),
            it.dtype,
            self.device,
            it.torch,
            it.threads,
            ms(it.eager_us),
            ms(it.compiled_us),
            it.rounds,
            it.capture_s,
            it.compile_s,
            self.whole(),
        );
        let rows = self.rows();
        let width =
            rows.iter().map(|row| row.region.name.chars().count()).max().unwrap_or(0).max("longer in the pass".len());
        text += &format!(
            "  # {:<width$} {:<7} {:>5} {:>9} {:>6} {:>6} {:>6}\n",
            "part", "kind", "calls", "ms", "share", "2x", "gone"
        );
        for (at, row) in rows.iter().enumerate() {
            text += &format!("{:>3} {}\n", at + 1, line(row, width));
            text += &places(row);
        }
        text += &self.between(width);
        text += &self.others(width);
        text += &self.rest(width);
        text += &self.alone(width);
        if let Some(us) = self.gaps_us() {
            text +=
                &format!("    {:<width$} {:<7} {:>5} {:>9.3}  without a CUDA graph\n", "launch gaps", "", "", us / 1e3);
        }
        let joined = self.joined();
        if !joined.is_empty() {
            text += "\nlarger parts, each in place of several rows above (`--only NAME` works on one):\n";
            for row in &joined {
                text += &format!("    {}\n", line(row, width));
            }
        }
        let refused: Vec<_> =
            rows.iter().chain(&joined).filter_map(|row| Some((row, row.region.why_not.as_ref()?))).collect();
        for (row, why) in refused {
            text += &format!("\nnot a target: {}: {why}", row.region.name);
        }
        for note in self.notes() {
            text += &format!("\nnote: {note}");
        }
        text.trim_end().to_owned()
    }

    /// What lies between kernels.
    fn between(&self, width: usize) -> String {
        let Some((us, kernels)) = self.between_us().zip(self.captured.kernels) else { return String::new() };
        let why = match self.captured.graph_us {
            Some(_) => format!("{:.2} µs a kernel: one that does the work of two saves that", us / kernels.max(1.0)),
            None => "the device waits for the host: launches, Python between graphs, values read back".into(),
        };
        format!(
            "    {:<width$} {:<7} {kernels:>5.0} {:>9.3} {:>6}  {why}\n",
            "between kernels",
            "",
            us / 1e3,
            format!("{:.1}%", 100.0 * us / self.account().base_us),
        )
    }

    /// Kernels of the pass that are of no part, by their names.
    fn others(&self, width: usize) -> String {
        let Some(others) = self.captured.others.as_deref().filter(|others| !others.is_empty()) else {
            return String::new();
        };
        let (count, us) = others.iter().fold((0, 0.0), |(count, us), it| (count + it.count, us + it.us));
        let mut text = format!(
            "    {:<width$} {:<7} {count:>5} {:>9.3} {:>6}\n",
            if count == 1 { "1 kernel of no part".into() } else { format!("{count} kernels of no part") },
            "",
            us / 1e3,
            format!("{:.1}%", 100.0 * us / self.account().base_us),
        );
        for kernel in others.iter().take(MOST_NAMED) {
            text += &format!("      {}\n", kernel.name.chars().take(PLACE).collect::<String>());
        }
        text
    }

    /// How much longer the parts take alone than in the pass, with a minus where it is less.
    fn alone(&self, width: usize) -> String {
        let Some(us) = self.longer_alone_us() else { return String::new() };
        format!(
            "    {:<width$} {:<7} {:>5} {:>9.3} {:>6}  all parts, each called by itself; above is their time in the pass\n",
            "longer alone",
            "",
            "",
            us / 1e3,
            format!("{:.1}%", 100.0 * us / self.account().base_us)
        )
    }

    /// What the parts do not explain, or, with a minus, how much longer they take alone.
    fn rest(&self, width: usize) -> String {
        let account = self.account();
        let (sign, us) = if account.overlap_us > 0.0 { ("-", account.overlap_us) } else { ("", account.other_us) };
        let (name, why) = match self.captured.others.is_none() && self.has_the_same_kernels() && account.other_us > 0.0
        {
            true => ("longer in the pass", "  than alone, the same kernels: caches are as the one before left them"),
            false => ("not explained", ""),
        };
        format!(
            "    {name:<width$} {:<7} {:>5} {:>9} {:>6}{why}\n",
            "",
            "",
            format!("{sign}{:.3}", us / 1e3),
            format!("{sign}{:.1}%", 100.0 * us / account.base_us)
        )
    }
}

fn line(row: &CompiledRow<'_>, width: usize) -> String {
    let region = row.region;
    let gains = [2.0, f64::INFINITY].map(|k| in_words(gain(row.share, k)));
    format!(
        "{:<width$} {:<7} {:>5} {:>9.3} {:>6} {:>6} {:>6}",
        region.name,
        region.kind.word(),
        region.calls,
        row.us / 1e3,
        format!("{:.1}%", 100.0 * row.share),
        gains[0],
        gains[1]
    )
}

/// Where it comes from.
fn places(row: &CompiledRow<'_>) -> String {
    let region = row.region;
    let modules = match region.modules.len() {
        0 => String::new(),
        1..=2 => format!("{}   ", region.modules.join(", ")),
        more => format!("{}, and {} more   ", region.modules[0], more - 1),
    };
    let line: String = region.lines.last().map_or(String::new(), |line| line.chars().take(PLACE).collect());
    if modules.is_empty() && line.is_empty() { String::new() } else { format!("      {modules}{line}\n") }
}

fn ms(us: f64) -> String {
    format!("{:.3} ms", us / 1e3)
}

fn count(elements: u64) -> String {
    let millions = elements as f64 / 1e6;
    if millions >= 1000.0 { format!("{:.2}G", millions / 1e3) } else { format!("{millions:.2}M") }
}
