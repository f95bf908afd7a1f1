//! `warpsmith bench --smoke --examine`: NVIDIA's sanitizers alone, each for itself, with what they said and how long it took.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::device::Device;
use crate::evaluation::{CLEAN, COULD_NOT_LOOK};
use crate::harness::{Elsewhere, EvaluationTask};
use crate::worker::Workers;

/// Lets every tool look at the task's candidate at once, prints a line for each, and says whether all of them found nothing.
pub(super) fn table(device: Device, task: &EvaluationTask) -> anyhow::Result<ExitCode> {
    let mut arguments = vec!["worker".to_owned(), "--within".to_owned()];
    arguments.extend(device.arguments());
    let workers = Workers::new(std::env::current_exe()?, arguments);
    let limit = Duration::from_secs_f64(task.examination_s);
    let lines: Vec<(String, bool)> = std::thread::scope(|scope| {
        let looking: Vec<_> = workers
            .instruments(task, None)
            .into_iter()
            .map(|instrument| {
                scope.spawn(move || {
                    let began = Instant::now();
                    let (words, clean) = match instrument.look.and_then(|look| look(limit)) {
                        Ok(None) => (CLEAN.to_owned(), true),
                        Ok(Some(what)) => (what, false),
                        Err(why) => (format!("{COULD_NOT_LOOK}: {why}"), false),
                    };
                    (format!("{} {:.1} s: {words}", instrument.name, began.elapsed().as_secs_f64()), clean)
                })
            })
            .collect();
        looking.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    for (line, _) in &lines {
        super::say(line);
    }
    let clean = !lines.is_empty() && lines.iter().all(|(_, clean)| *clean);
    Ok(ExitCode::from(u8::from(!clean)))
}
