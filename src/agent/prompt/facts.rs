//! Device and evaluation, as a prompt says them.

use std::fmt::Write as _;

use super::fenced;
use super::operation::percent;
use super::template::Values;
use crate::agent::Brief;
use crate::device::DeviceCard;
use crate::evaluation::Timing;

/// The machine with its measured ceilings.
pub(super) fn device(values: &mut Values, brief: &Brief) {
    let card = &brief.device;
    let mut lines = vec![format!("- {}: {}", name(card), machine(card))];
    let ceilings = &card.ceilings;
    let rates: Vec<String> =
        ceilings.gflops.iter().map(|(dtype, rate)| format!("{:.3} TFLOP/s in {dtype}", rate / 1e3)).collect();
    lines.push(format!(
        "- measured ceilings: {:.0} GB/s read, {:.0} GB/s written, {}; starting a kernel takes {:.1} µs",
        ceilings.read_gb_s,
        ceilings.write_gb_s,
        if rates.is_empty() { "no rate of arithmetic".to_owned() } else { rates.join(", ") },
        ceilings.launch_us
    ));
    if !card.facts.is_empty() {
        let facts: Vec<String> = card.facts.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        lines.push(format!("- facts for expressions in the front matter: {}", facts.join(", ")));
    }
    values.set("device", lines.join("\n"));
    values.set("device_name", name(card));
}

/// The product's name, which comes from the machine and is held to a line.
fn name(card: &DeviceCard) -> String {
    fenced::one_line(&card.name, 80)
}

fn machine(card: &DeviceCard) -> String {
    let kib =
        |bytes: u64| if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) };
    if card.backend == "cuda" {
        let capability = card.facts.get("CC").map_or_else(String::new, |cc| {
            format!(", compute capability {}.{} ({})", cc / 10, cc % 10, generation(*cc))
        });
        return format!("{} multiprocessors, L2 {}{capability}", card.cores, kib(card.l2_bytes));
    }
    let l3 = if card.l3_bytes > 0 { format!(", L3 {}", kib(card.l3_bytes)) } else { String::new() };
    format!(
        "{} cores, vectors of {} bits, L1 {} a core, L2 {} in all{l3}",
        card.cores,
        card.vector_bits,
        kib(card.l1_bytes),
        kib(card.l2_bytes)
    )
}

/// NVIDIA's name for a compute capability.
pub(super) const fn generation(capability: i64) -> &'static str {
    match capability {
        ..=69 => "before Volta",
        70..=74 => "Volta",
        75..=79 => "Turing",
        89 => "Ada",
        80..=88 => "Ampere",
        90..=99 => "Hopper",
        _ => "Blackwell",
    }
}

/// The incumbent's times, its margin, and what the compiler said.
pub(super) fn evaluation(values: &mut Values, brief: &Brief) {
    let timing = brief.timing.as_ref();
    values.set("timing", timing.map_or_else(|| "It has not been timed yet.".to_owned(), table));
    values.set("margin", format!("{:.1} %", 100.0 * brief.margin));
    values.set("vs_user", if brief.unwritten { "nothing yet".to_owned() } else { format!("{:.3}x", brief.vs_user) });
    let against = brief
        .against
        .as_deref()
        .map_or(if brief.unwritten { "PyTorch" } else { "the kernel the run started from" }.to_owned(), |name| {
            fenced::one_line(name, 40)
        });
    values.set("against", against);
    let resources = fenced::log(&brief.resources);
    values.set(
        "resources",
        if resources.is_empty() { resources } else { format!("The compiler said of it:\n\n{resources}") },
    );
}

/// A row for each shape.
fn table(timing: &Timing) -> String {
    let mut text = String::from(
        "| shape | dtype | calls | µs a call | roofline µs | of the roofline | bound | of the sum |\n|---|---|---|---|---|---|---|---|",
    );
    let sum: f64 = timing.shapes.iter().map(|shape| f64::from(shape.calls) * shape.candidate_us).sum();
    for shape in &timing.shapes {
        let _ = write!(
            text,
            "\n| {} | {} | {} | {:.2} | {:.2} | {} | {} | {} |",
            shape.shape,
            shape.dtype,
            shape.calls,
            shape.candidate_us,
            shape.roofline_us,
            percent(shape.roofline_us / shape.candidate_us),
            shape.bound,
            percent(f64::from(shape.calls) * shape.candidate_us / sum)
        );
    }
    let _ = write!(
        text,
        "\n\nΣ calls × time: {:.1} µs, {:.0} % of the roofline over the target.",
        timing.latency_us, timing.roofline_pct
    );
    if let Some(condition) = &timing.condition {
        let _ = write!(text, " The device: {}.", fenced::one_line(condition, 200));
    }
    text
}
