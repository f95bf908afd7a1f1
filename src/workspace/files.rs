//! Writing files so that a reader, or a power cut, finds the old text or the new one and nothing between.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Puts `bytes` at `path` by way of a temporary file beside it, synced before and after the rename.
/// Missing folders are made.
///
/// # Errors
/// Whatever the file system says.
pub fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new().prefix(".warpsmith-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    // A temporary file is private; what stands in a workspace is as readable as what stands beside it.
    let mode = std::fs::metadata(path).map_or(0o644, |old| std::os::unix::fs::PermissionsExt::mode(&old.permissions()));
    file.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode & 0o777))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sync_folder(folder)
}

/// Makes renames and removals in `folder` last.
///
/// # Errors
/// Whatever the file system says.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Removes a file; that there was none is as good.
///
/// # Errors
/// Whatever else the file system says.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
