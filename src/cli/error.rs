//! Errors for people: what happened, where, what to do.

use std::process::ExitCode;

/// Prints an error with its causes and gives the exit code for "could not", or for "interrupted".
pub(super) fn report(error: &anyhow::Error) -> ExitCode {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Many errors already quote their cause.
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    if super::session::interrupted() {
        super::warn(&if text == "cancelled" { "interrupted".to_owned() } else { format!("interrupted: {text}") });
        return ExitCode::from(130);
    }
    super::warn(&format!("error: {text}"));
    ExitCode::from(2)
}
