//! A folder of named voices.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use zonos2::voice::VoiceError;

use super::{Provenance, Voice, VoiceFileError, VoiceName, VoiceNameError};

/// The ending of a voice's file.
const ENDING: &str = "safetensors";

/// The variable that names the folder.
const VARIABLE: &str = "ZONOS_VOICES";

/// Why a stored voice could not be had, kept or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No name of a voice.
    #[error(transparent)]
    Name(#[from] VoiceNameError),
    /// No voice of that name. Links, folders and whatever else is no file count as nothing.
    #[error(
        "no voice named '{name}' in {}; `zonos voices list` tells what is there", folder.display()
    )]
    NotFound {
        /// The name.
        name: VoiceName,
        /// The folder of voices.
        folder: PathBuf,
    },
    /// There is one of that name.
    #[error(
        "there is a voice named '{name}' in {}; give another name, or replace it with --force", folder.display()
    )]
    Exists {
        /// The name to save under.
        name: VoiceName,
        /// The folder of voices.
        folder: PathBuf,
    },
    /// There is one whose name differs in nothing but case; on some systems the two are one file.
    #[error(
        "there is a voice named '{other}' in {}, and names must differ in more than case: give another name than '{name}', or remove '{other}' first", folder.display()
    )]
    Alike {
        /// The name to save under.
        name: VoiceName,
        /// The name that is there.
        other: VoiceName,
        /// The folder of voices.
        folder: PathBuf,
    },
    /// Something that is no file stands where the voice would be: a link, a folder.
    #[error("{} is no file that could be replaced; remove it first", .0.display())]
    Occupied(PathBuf),
    /// No place to keep voices is known.
    #[error(
        "no folder for voices: neither {VARIABLE} nor the user's home is set; name one with --voices"
    )]
    NoFolder,
    /// The folder cannot be read, made or changed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the folder could not be read or written.
    #[error(transparent)]
    File(#[from] VoiceFileError),
    /// Two voices could not be blended.
    #[error(transparent)]
    Blend(#[from] VoiceError),
}

/// A file of the folder, as [`VoiceStore::list`] finds it.
#[derive(Debug)]
pub struct StoredVoice {
    /// Its name.
    pub name: VoiceName,
    /// Its file.
    pub path: PathBuf,
    /// The voice, or why it cannot be read.
    pub voice: Result<Voice, VoiceFileError>,
}

/// A folder of voices, each in the file `NAME.safetensors` (see the [module](crate::voice)).
///
/// Names are [`VoiceName`]s, so they cannot lead out of the folder; what is no regular file in it (a
/// link, a folder, a pipe) is not followed, whatever it points at. Files appear whole or not at all.
///
/// ```
/// use zonos_tts::{Provenance, Voice, VoiceName, VoiceStore};
///
/// # let dir = tempfile::tempdir()?;
/// let store = VoiceStore::new(dir.path());
/// let (anna, ben) = (VoiceName::new("anna")?, VoiceName::new("ben")?);
/// store.add(&anna, &Voice::new(vec![1.0, 0.0], Provenance::now())?, false)?;
/// store.add(&ben, &Voice::new(vec![0.0, 1.0], Provenance::now())?, false)?;
/// let between = store.blend(&anna, &ben, 0.5)?;
/// store.add(&VoiceName::new("between")?, &between, false)?;
/// assert_eq!(store.list()?.len(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoiceStore {
    folder: PathBuf,
}

impl VoiceStore {
    /// The voices in `folder`, which need not exist before one is added.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The voices of the user: in `$ZONOS_VOICES`, else in the system's place for a program's data:
    /// `$XDG_DATA_HOME/zonos/voices` or `~/.local/share/zonos/voices`, on macOS
    /// `~/Library/Application Support/zonos/voices`, on Windows `%APPDATA%\zonos\voices`.
    ///
    /// # Errors
    /// [`StoreError::NoFolder`] when none of these is known.
    pub fn of_user() -> Result<Self, StoreError> {
        let system = if cfg!(windows) {
            System::Windows
        } else if cfg!(target_os = "macos") {
            System::Mac
        } else {
            System::Unix
        };
        default_folder(system, |name| std::env::var_os(name))
            .map(Self::new)
            .ok_or(StoreError::NoFolder)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a name, whether there is one or not.
    pub fn path(&self, name: &VoiceName) -> PathBuf {
        self.folder.join(format!("{name}.{ENDING}"))
    }

    /// All voices, sorted by name; those that cannot be read come with the reason. Files that are no
    /// voices by name or kind are passed over; a folder that does not exist is empty.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self) -> Result<Vec<StoredVoice>, StoreError> {
        let mut found: Vec<StoredVoice> = self
            .names()?
            .into_iter()
            .map(|name| {
                let path = self.path(&name);
                let voice = Voice::load(&path);
                StoredVoice { name, path, voice }
            })
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn names(&self) -> Result<Vec<VoiceName>, StoreError> {
        let failed = |source: io::Error| StoreError::Io {
            path: self.folder.clone(),
            source: match source.kind() {
                io::ErrorKind::NotADirectory => {
                    io::Error::other("a file, not a folder; voices are kept in a folder")
                }
                _ => source,
            },
        };
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            // The kind of the entry itself: a link is no file here.
            let file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let name = entry.file_name();
            let name = name
                .to_str()
                .and_then(|name| name.strip_suffix(ENDING)?.strip_suffix('.'));
            if let (true, Some(Ok(name))) = (file, name.map(VoiceName::new)) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The voice of a name.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], the same for everything that is no file of the folder, or a file that
    /// cannot be read as a voice.
    pub fn get(&self, name: &VoiceName) -> Result<Voice, StoreError> {
        let path = self.existing(name)?;
        let voice = Voice::load(&path)?;
        Ok(voice)
    }

    /// The file of a voice that is there.
    fn existing(&self, name: &VoiceName) -> Result<PathBuf, StoreError> {
        let path = self.path(name);
        // Of the entry itself. What a link leads to is not even looked at.
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_file() => Ok(path),
            Ok(_) => Err(self.not_found(name)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Err(self.not_found(name)),
                _ => Err(StoreError::Io {
                    path: self.folder.clone(),
                    source: error,
                }),
            },
        }
    }

    fn not_found(&self, name: &VoiceName) -> StoreError {
        StoreError::NotFound {
            name: name.clone(),
            folder: self.folder.clone(),
        }
    }

    /// Keeps a voice under a name, creating the folder where there is none, and gives its file. The
    /// name goes into the provenance.
    ///
    /// # Errors
    /// [`StoreError::Exists`] unless `replace` is set; [`StoreError::Alike`] for a name that differs from
    /// another in nothing but case; [`StoreError::Occupied`], or a folder or file that cannot be written.
    pub fn add(
        &self,
        name: &VoiceName,
        voice: &Voice,
        replace: bool,
    ) -> Result<PathBuf, StoreError> {
        let path = self.free(name, replace)?;
        let new = !self.folder.exists();
        fs::create_dir_all(&self.folder).map_err(|source| StoreError::Io {
            path: self.folder.clone(),
            source,
        })?;
        let provenance = Provenance {
            name: Some(name.to_string()),
            ..voice.provenance().clone()
        };
        let saved = voice.clone().with_provenance(provenance).save(&path);
        if saved.is_err() && new {
            // Fails, as it should, when something lies in it.
            let _ = fs::remove_dir(&self.folder);
        }
        saved?;
        Ok(path)
    }

    /// Whether a voice could be kept under a name, before one is made at length; gives its file.
    ///
    /// # Errors
    /// As [`add`](Self::add), as far as the folder tells.
    pub fn free(&self, name: &VoiceName, replace: bool) -> Result<PathBuf, StoreError> {
        let path = self.path(name);
        match fs::symlink_metadata(&path) {
            // Written through a link, a voice would end up elsewhere.
            Ok(meta) if !meta.is_file() => return Err(StoreError::Occupied(path)),
            _ => {}
        }
        let alike = |other: &VoiceName| other.as_str().eq_ignore_ascii_case(name.as_str());
        match self.names()?.into_iter().find(alike) {
            Some(other) if other != *name => Err(StoreError::Alike {
                name: name.clone(),
                other,
                folder: self.folder.clone(),
            }),
            Some(_) if !replace => Err(StoreError::Exists {
                name: name.clone(),
                folder: self.folder.clone(),
            }),
            _ => Ok(path),
        }
    }

    /// Removes the voice of a name and gives the file that it was.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], or a file that cannot be removed.
    pub fn remove(&self, name: &VoiceName) -> Result<PathBuf, StoreError> {
        let path = self.existing(name)?;
        match fs::remove_file(&path) {
            Ok(()) => Ok(path),
            Err(source) => Err(StoreError::Io { path, source }),
        }
    }

    /// Blends two voices, from `a` at 0 to `b` at 1; see [`Voice::blend`]. Nothing is saved.
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`Voice::blend`].
    pub fn blend(&self, a: &VoiceName, b: &VoiceName, t: f64) -> Result<Voice, StoreError> {
        let named = |name: &VoiceName| -> Result<Voice, StoreError> {
            let voice = self.get(name)?;
            // The name it has here, whatever its file says.
            let provenance = Provenance {
                name: Some(name.to_string()),
                ..voice.provenance().clone()
            };
            Ok(voice.with_provenance(provenance))
        };
        let (first, second) = (named(a)?, named(b)?);
        second.check(&format!("voice {b}, to blend with {a}"), first.dim())?;
        Ok(first.blend(&second, t)?)
    }
}

/// Whose customs decide where a program keeps its data.
#[derive(Clone, Copy)]
enum System {
    Unix,
    Mac,
    Windows,
}

fn default_folder(system: System, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(folder) = set(VARIABLE) {
        return Some(folder);
    }
    let data = match system {
        System::Windows => set("APPDATA"),
        System::Mac => set("HOME").map(|home| home.join("Library/Application Support")),
        // The standard calls a relative path invalid.
        System::Unix => set("XDG_DATA_HOME")
            .filter(|folder| folder.has_root())
            .or_else(|| set("HOME").map(|home| home.join(".local/share"))),
    };
    Some(data?.join("zonos").join("voices"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> VoiceName {
        VoiceName::new(text).unwrap()
    }

    fn voice(x: f32) -> Voice {
        Voice::new(vec![x, 1.0], Provenance::now()).unwrap()
    }

    #[test]
    fn voices_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let store = VoiceStore::new(dir.path().join("deep/voices"));
        assert!(store.list().unwrap().is_empty());
        assert!(matches!(
            store.get(&name("a")),
            Err(StoreError::NotFound { .. })
        ));
        let path = store.add(&name("a"), &voice(0.5), false).unwrap();
        assert_eq!(path, store.path(&name("a")));
        let kept = store.get(&name("a")).unwrap();
        assert_eq!(kept.vector(), &[0.5, 1.0]);
        assert_eq!(kept.provenance().name.as_deref(), Some("a"));

        let again = store.add(&name("a"), &voice(2.0), false).unwrap_err();
        assert!(again.to_string().contains("--force"), "{again}");
        assert_eq!(store.get(&name("a")).unwrap(), kept);
        store.add(&name("a"), &voice(2.0), true).unwrap();
        assert_eq!(store.get(&name("a")).unwrap().vector()[0], 2.0);
        // Not even with force: on some systems they are one file.
        for replace in [false, true] {
            let alike = store.add(&name("A"), &voice(1.0), replace).unwrap_err();
            assert!(matches!(alike, StoreError::Alike { .. }));
            let text = alike.to_string();
            assert!(text.contains("remove 'a' first"), "{text}");
            assert!(!text.contains("--force"), "{text}");
        }

        store.add(&name("b"), &voice(0.0), false).unwrap();
        let names: Vec<_> = store.list().unwrap().into_iter().map(|v| v.name).collect();
        assert_eq!(names, [name("a"), name("b")]);
        assert_eq!(store.remove(&name("a")).unwrap(), path);
        assert!(store.remove(&name("a")).is_err());
        assert_eq!(store.list().unwrap().len(), 1);
    }

    #[test]
    fn a_listing_shows_voices_and_what_should_be_one() {
        let dir = tempfile::tempdir().unwrap();
        let store = VoiceStore::new(dir.path());
        store.add(&name("good"), &voice(1.0), false).unwrap();
        for other in [
            "notes.txt",
            ".hidden.safetensors",
            "CON.safetensors",
            "a b.safetensors",
            "safetensors",
            ".safetensors",
        ] {
            fs::write(dir.path().join(other), "x").unwrap();
        }
        fs::create_dir(dir.path().join("folder.safetensors")).unwrap();
        fs::write(dir.path().join("bad.safetensors"), "x").unwrap();
        let list = store.list().unwrap();
        let names: Vec<_> = list.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["bad", "good"]);
        let error = list[0].voice.as_ref().unwrap_err().to_string();
        assert!(error.contains("bad.safetensors"), "{error}");
    }

    #[test]
    fn a_file_is_no_folder_of_voices() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        let store = VoiceStore::new(&file);
        let add = store.add(&name("a"), &voice(1.0), false).unwrap_err();
        for text in [add.to_string(), store.list().unwrap_err().to_string()] {
            assert!(text.contains("file: a file, not a folder"), "{text}");
        }
    }

    #[test]
    fn blends_name_both() {
        let dir = tempfile::tempdir().unwrap();
        let store = VoiceStore::new(dir.path());
        store.add(&name("a"), &voice(1.0), false).unwrap();
        store.add(&name("b"), &voice(3.0), false).unwrap();
        let c = store.blend(&name("a"), &name("b"), 0.25).unwrap();
        let source = c.provenance().source.as_deref();
        assert_eq!(source, Some("blend of a and b, t = 0.25"));
        let wide = Voice::new(vec![1.0; 3], Provenance::default()).unwrap();
        store.add(&name("w"), &wide, false).unwrap();
        let error = store.blend(&name("a"), &name("w"), 0.5).unwrap_err();
        let text = error.to_string();
        for needle in ["voice w", "of 2 numbers", "found 3"] {
            assert!(text.contains(needle), "{text}");
        }
        assert!(store.blend(&name("a"), &name("gone"), 0.5).is_err());
    }

    /// A link out of the folder: what it leads to is neither read nor written nor removed, and whether
    /// it exists cannot be told.
    #[cfg(unix)]
    #[test]
    fn nothing_outside_is_touched() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let store = VoiceStore::new(dir.path().join("voices"));
        fs::create_dir(store.folder()).unwrap();
        let outside = dir.path().join("outside.safetensors");
        voice(1.0).save(&outside).unwrap();
        let before = fs::read(&outside).unwrap();
        let missing = dir.path().join("missing.safetensors");
        symlink(&outside, store.path(&name("a"))).unwrap();
        symlink(&missing, store.path(&name("b"))).unwrap();
        fs::create_dir(store.path(&name("c"))).unwrap();
        // The name as a file and as a folder beside it.
        fs::create_dir(store.folder().join("d")).unwrap();

        let told = |error: StoreError, called: &str| error.to_string().replace(called, "X");
        let absent = told(store.get(&name("e")).unwrap_err(), "'e'");
        for n in ["a", "b", "c", "d"] {
            let quoted = format!("'{n}'");
            assert_eq!(told(store.get(&name(n)).unwrap_err(), &quoted), absent);
            assert_eq!(told(store.remove(&name(n)).unwrap_err(), &quoted), absent);
        }
        for n in ["a", "b", "c"] {
            for replace in [false, true] {
                let error = store.add(&name(n), &voice(9.0), replace).unwrap_err();
                assert!(matches!(error, StoreError::Occupied(_)), "{error}");
            }
        }
        assert_eq!(fs::read(&outside).unwrap(), before);
        assert!(!missing.exists());
        assert!(
            fs::symlink_metadata(store.path(&name("a")))
                .unwrap()
                .is_symlink()
        );
        assert!(store.list().unwrap().is_empty());
    }

    #[test]
    fn the_folder_of_a_user() {
        let of = |system, vars: &[(&str, &str)]| {
            default_folder(system, |name| {
                let found = vars.iter().find(|(key, _)| *key == name)?;
                Some(OsString::from(found.1))
            })
        };
        let home = ("HOME", "/h");
        let is = |folder: Option<PathBuf>, expected: &str| {
            assert_eq!(folder, Some(PathBuf::from(expected)));
        };
        is(of(System::Unix, &[home, (VARIABLE, "/v")]), "/v");
        is(
            of(System::Unix, &[home, (VARIABLE, "")]),
            "/h/.local/share/zonos/voices",
        );
        is(
            of(System::Unix, &[home, ("XDG_DATA_HOME", "/d")]),
            "/d/zonos/voices",
        );
        is(
            of(System::Unix, &[home, ("XDG_DATA_HOME", "d")]),
            "/h/.local/share/zonos/voices",
        );
        is(
            of(System::Mac, &[home]),
            "/h/Library/Application Support/zonos/voices",
        );
        is(of(System::Windows, &[("APPDATA", "/a")]), "/a/zonos/voices");
        assert_eq!(of(System::Unix, &[]), None);
        assert_eq!(of(System::Windows, &[home]), None);
    }
}
