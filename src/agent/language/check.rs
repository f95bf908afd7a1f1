//! A look at the endpoint before any work.

use std::time::{Duration, Instant};

use super::endpoint::{Endpoint, Manner};
use super::failure::{Failure, Kind};
use super::{LanguageError, Settings};

/// Attempts at a server that has a fault of its own.
const ATTEMPTS: u32 = 3;
/// The pause between them.
const PAUSE: Duration = Duration::from_secs(1);

/// Asks every model for a word, so that a wrong key, address or model or a spent quota is known before any work.
///
/// # Errors
/// One sentence: what is wrong, and what to do about it.
pub async fn check(settings: &Settings) -> Result<(), LanguageError> {
    let endpoint = Endpoint::new(settings)?;
    for (model, _) in &settings.models {
        greet(&endpoint, settings, model).await.map_err(|failure| {
            let sentence = failure.sentence(&settings.host(), model);
            LanguageError::Endpoint { sentence, kind: failure.kind }
        })?;
    }
    Ok(())
}

async fn greet(endpoint: &Endpoint, settings: &Settings, model: &str) -> Result<(), Failure> {
    let mut manner = Manner::default();
    let mut attempts = 0;
    let began = Instant::now();
    loop {
        let left = settings.check_within.saturating_sub(began.elapsed());
        let silent = || Failure::new(Kind::Silent, &format!("no word within {} s", settings.check_within.as_secs()));
        let answer = tokio::time::timeout(left, endpoint.greet(model, &manner)).await.map_err(|_| silent())?;
        let Err(failure) = answer.outcome else { return Ok(()) };
        match &failure.kind {
            // All of these answer, which is what is asked here; the run has the patience for the rest.
            Kind::RateLimited | Kind::TooLong(_) => return Ok(()),
            kind if kind.was_answered() => return Ok(()),
            Kind::Parameter(name) if manner.without.insert(name.clone()) => {}
            Kind::Overloaded | Kind::Dropped | Kind::Odd if attempts + 1 < ATTEMPTS => {
                attempts += 1;
                tokio::time::sleep(settings.scaled(PAUSE)).await;
            }
            _ => return Err(failure),
        }
    }
}
