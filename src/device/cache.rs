//! Device cards on disk: ceilings are measured once a machine.

use std::io;
use std::path::{Path, PathBuf};

use super::DeviceCard;

fn file(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("device-{key}.json"))
}

/// The card stored for the device `key`; one that does not parse counts as none, and is measured again.
#[must_use]
pub fn cached_card(folder: &Path, key: &str) -> Option<DeviceCard> {
    let card: DeviceCard = serde_json::from_slice(&std::fs::read(file(folder, key)).ok()?).ok()?;
    (card.key == key).then_some(card)
}

/// Stores a card under its own key, whole or not at all.
///
/// # Errors
/// The folder cannot be written.
pub fn store_card(folder: &Path, card: &DeviceCard) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut new, card)?;
    new.persist(file(folder, &card.key)).map(|_| ()).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::device::samples;

    #[test]
    fn a_stored_card_comes_back_and_a_damaged_one_does_not() {
        let card = DeviceCard { key: "cpu-1".into(), ..samples::card() };
        let folder = tempfile::tempdir().unwrap();
        store_card(folder.path(), &card).unwrap();
        assert_eq!(cached_card(folder.path(), "cpu-1"), Some(card));
        assert_eq!(cached_card(folder.path(), "cpu-2"), None);
        std::fs::write(file(folder.path(), "cpu-1"), "{").unwrap();
        assert_eq!(cached_card(folder.path(), "cpu-1"), None);
    }
}
