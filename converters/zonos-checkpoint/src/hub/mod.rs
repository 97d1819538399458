//! `hub:owner/name[@revision]`: checkpoints in the Hugging Face cache, downloaded when they are not.
//!
//! The cache is the one every other program uses: `$HF_HUB_CACHE`, else `$HF_HOME/hub`, else
//! `~/.cache/huggingface/hub`, with `models--OWNER--NAME/{refs,blobs,snapshots}` inside. `refs/main`
//! holds a commit, `snapshots/COMMIT/FILE` are links to `blobs/ETAG` (or plain files on systems
//! without links). A cache that holds everything is only read, so it may be read-only; with
//! `HF_HUB_OFFLINE=1` no request is made at all. Downloads are resumed from `blobs/ETAG.incomplete`.

mod download;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::{ENDINGS, NAMED};
use crate::mapped::open_regular;
use crate::safetensors::is_plain_file_name;
use crate::sidecar::read_json;
use crate::{Checkpoint, CheckpointError};

/// The revision taken when a reference names none.
const DEFAULT_REVISION: &str = "main";
/// Small files that say what the weights are.
const SIDECARS: [&str; 2] = ["params.json", "config.json"];
/// Most bytes of a file that holds one word.
const MAX_WORD: u64 = 16 << 10;

/// How far the download of one file is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DownloadProgress {
    /// The file within the repository.
    pub file: String,
    /// Bytes that are there, those of an earlier attempt included.
    pub done: u64,
    /// Bytes of the whole file, when the server says so.
    pub total: Option<u64>,
}

/// Called while files are downloaded.
pub type OnProgress = Arc<dyn Fn(&DownloadProgress) + Send + Sync>;

/// A cache folder and the hub behind it.
#[derive(Clone)]
pub struct Hub {
    cache: PathBuf,
    endpoint: String,
    token: Option<String>,
    offline: bool,
    progress: Option<OnProgress>,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is a secret.
        f.debug_struct("Hub")
            .field("cache", &self.cache)
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| ".."))
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// The hub at `endpoint` with its cache in `cache`, no token, online.
    pub fn new(cache: impl Into<PathBuf>, endpoint: impl Into<String>) -> Self {
        Self {
            cache: cache.into(),
            endpoint: endpoint.into().trim_end_matches('/').to_string(),
            token: None,
            offline: false,
            progress: None,
        }
    }

    /// From `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN` (or the file that `HF_TOKEN_PATH` names, or
    /// `$HF_HOME/token`), `HF_ENDPOINT` and `HF_HUB_OFFLINE`.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// [`Hub::from_env`] with variables looked up by `var`.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| var(name).filter(|v| !v.trim().is_empty());
        let folder = |name: &str| set(name).map(|v| expand(&v, &set));
        let home = folder("HF_HOME").unwrap_or_else(|| {
            folder("XDG_CACHE_HOME")
                .unwrap_or_else(|| user_home(&set).join(".cache"))
                .join("huggingface")
        });
        let cache = folder("HF_HUB_CACHE")
            .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
            .unwrap_or_else(|| home.join("hub"));
        let token = set("HF_TOKEN")
            .or_else(|| set("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| {
                let file = folder("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
                read_word(&file)
            });
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let offline = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
            .iter()
            .filter_map(|name| set(name))
            .any(|v| matches!(v.to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true"));
        let mut hub = Self::new(cache, endpoint).offline(offline);
        if let Some(token) = token {
            hub = hub.token(token);
        }
        hub
    }

    /// The access token sent to the endpoint (and nowhere else).
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into().trim().to_string()).filter(|t| !t.is_empty());
        self
    }

    /// Whether to make no request at all.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Is told about downloads.
    #[must_use]
    pub fn on_progress(mut self, progress: OnProgress) -> Self {
        self.progress = Some(progress);
        self
    }

    /// The cache folder.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// Opens `owner/name[@revision]`, of it the file `named` where it holds several.
    pub(crate) fn open(
        &self,
        reference: &str,
        named: Option<&str>,
        key: Option<&str>,
    ) -> Result<Checkpoint, CheckpointError> {
        let id = Id::parse(reference)?;
        let snapshot = self.snapshot(&id, named)?;
        let mut checkpoint =
            Checkpoint::open_local(&snapshot.folder, named, key).map_err(|e| match e {
                CheckpointError::NoWeights { .. }
                | CheckpointError::NotFound { .. }
                | CheckpointError::ShardIndex { .. } => {
                    CheckpointError::Hub(format!("{}: {e}", self.place(&id)))
                }
                other => other,
            })?;
        for notice in snapshot.notices {
            checkpoint.add_notice(notice);
        }
        Ok(checkpoint)
    }

    /// The folder `snapshots/COMMIT` of `owner/name[@revision]` with the weights inside, downloaded
    /// as far as they are missing.
    ///
    /// # Errors
    ///
    /// Names repository, revision, file, cache folder or endpoint, and what to do.
    pub fn resolve(&self, reference: &str) -> Result<PathBuf, CheckpointError> {
        Ok(self.snapshot(&Id::parse(reference)?, None)?.folder)
    }

    fn snapshot(&self, id: &Id, named: Option<&str>) -> Result<Snapshot, CheckpointError> {
        let cached = self.cached(id);
        if self.offline {
            return cached.ok_or_else(|| {
                CheckpointError::Hub(format!(
                    "{}: not in the cache and HF_HUB_OFFLINE is set; {}",
                    self.place(id),
                    self.miss(id, named)
                ))
            });
        }
        let complete = cached.filter(|c| is_complete(&c.folder, named));
        // A commit never changes, so nothing need be asked.
        if let Some(found) = &complete
            && is_commit_prefix(&id.revision)
            && found.commit().starts_with(&id.revision)
        {
            return Ok(found.clone());
        }
        match self.fetch(id, named) {
            Ok(folder) => Ok(Snapshot {
                folder,
                notices: Vec::new(),
            }),
            Err(e) => match complete {
                Some(mut found) => {
                    found.notices.push(format!(
                        "using the cached copy, the hub did not answer: {e}"
                    ));
                    Ok(found)
                }
                None => Err(e),
            },
        }
    }

    /// Where the cache has the revision, without a request.
    fn cached(&self, id: &Id) -> Option<Snapshot> {
        let repo = self.cache.join(id.folder());
        let snapshots = repo.join("snapshots");
        let at = |commit: &str| {
            let folder = snapshots.join(commit);
            folder.is_dir().then_some(folder)
        };
        let reference = read_word(&repo.join("refs").join(&id.revision));
        let commit = match &reference {
            Some(text) => Some(text.trim()),
            None => is_commit(&id.revision).then_some(id.revision.as_str()),
        };
        if let Some(folder) = commit.filter(|c| is_plain_file_name(c)).and_then(at) {
            return Some(Snapshot {
                folder,
                notices: Vec::new(),
            });
        }
        let mut commits = self.snapshots(id);
        if is_commit_prefix(&id.revision) && reference.is_none() {
            commits.retain(|c| c.starts_with(&id.revision));
        } else if id.revision != DEFAULT_REVISION {
            return None;
        }
        let [only] = &commits[..] else {
            return None;
        };
        let notices = if id.revision == DEFAULT_REVISION {
            vec![format!(
                "{}: no usable refs/{} in the cache, using its only snapshot {only}",
                id.repo(),
                id.revision,
            )]
        } else {
            Vec::new()
        };
        Some(Snapshot {
            folder: snapshots.join(only),
            notices,
        })
    }

    /// Commits with a snapshot in the cache, sorted.
    fn snapshots(&self, id: &Id) -> Vec<String> {
        let folder = self.cache.join(id.folder()).join("snapshots");
        let mut commits: Vec<String> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|e| e.ok().filter(|e| e.path().is_dir()))
            .filter_map(|e| e.file_name().into_string().ok())
            .collect();
        commits.sort();
        commits
    }

    /// Why [`Hub::cached`] found nothing, and what to do.
    fn miss(&self, id: &Id, named: Option<&str>) -> String {
        let repo = self.cache.join(id.folder());
        let commits = self.snapshots(id);
        if commits.is_empty() {
            let what = if repo.is_dir() {
                "no snapshot in the folder"
            } else {
                "no folder"
            };
            let weights = match named {
                Some(name) => name.to_owned(),
                None => format!("one of {}", NAMED.join(", ")),
            };
            return format!(
                "{what} {}, where the weights ({weights}) would be; go online once or set HF_HUB_CACHE",
                id.folder(),
            );
        }
        let list = commits.join(", ");
        if is_commit_prefix(&id.revision) && commits.iter().any(|c| c.starts_with(&id.revision)) {
            return format!(
                "several snapshots begin with '{}', give more digits; cached: {list}",
                id.revision
            );
        }
        if repo.join("refs").join(&id.revision).is_file() {
            return format!(
                "refs/{} names a commit without a snapshot; go online once, or name one with @REV: {list}",
                id.revision
            );
        }
        if id.revision == DEFAULT_REVISION {
            return format!(
                "{} snapshots and no refs/{DEFAULT_REVISION}: name one with @REV: {list}",
                commits.len()
            );
        }
        format!(
            "revision '{}' is not cached, go online once or take one that is; cached: {list}",
            id.revision
        )
    }

    fn fetch(&self, id: &Id, named: Option<&str>) -> Result<PathBuf, CheckpointError> {
        let client = download::Client::new(self, id);
        let listing = client.list()?;
        let commit = listing.commit.clone();
        let mut wanted: Vec<&str> = SIDECARS
            .into_iter()
            .filter(|s| listing.files.iter().any(|f| f == s))
            .collect();
        let weights = choose(&listing.files, named).map_err(|looked_for| {
            CheckpointError::Hub(format!(
                "hub:{id}: none of its {} files is a checkpoint this program reads; looked for {looked_for}",
                listing.files.len()
            ))
        })?;
        wanted.push(weights);
        let mut last = PathBuf::new();
        for file in wanted {
            last = client.get(&commit, file)?;
        }
        if weights.ends_with(".safetensors.index.json") {
            for shard in shards(&last)? {
                if !listing.files.contains(&shard) {
                    return Err(CheckpointError::Hub(format!(
                        "hub:{id}: {weights} names shard '{shard}', which the repository does not have"
                    )));
                }
                client.get(&commit, &shard)?;
            }
        }
        client.set_reference(&commit);
        Ok(self.cache.join(id.folder()).join("snapshots").join(commit))
    }

    /// `hub:owner/name@revision, cache DIR` for messages.
    fn place(&self, id: &Id) -> String {
        format!("hub:{id} (cache {})", self.cache.display())
    }
}

#[derive(Debug, Clone)]
struct Snapshot {
    folder: PathBuf,
    notices: Vec<String>,
}

impl Snapshot {
    /// The name of its folder.
    fn commit(&self) -> std::borrow::Cow<'_, str> {
        self.folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
    }
}

/// A repository and a revision of it.
#[derive(Debug, Clone, PartialEq)]
struct Id {
    owner: String,
    name: String,
    revision: String,
}

impl Id {
    fn parse(reference: &str) -> Result<Self, CheckpointError> {
        let wrong = || {
            CheckpointError::Hub(format!(
                "hub:{reference}: expected hub:owner/name or hub:owner/name@revision"
            ))
        };
        let (repo, revision) = reference
            .split_once('@')
            .unwrap_or((reference, DEFAULT_REVISION));
        let (owner, name) = repo.split_once('/').ok_or_else(wrong)?;
        let word = |text: &str| {
            !text.is_empty()
                && text.len() <= 128
                && !text.starts_with(['.', '-'])
                && text
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        };
        // `refs/pr/1` is a revision; `..` is not.
        let parts = revision.split('/').all(word);
        if !word(owner) || !word(name) || !parts || revision.len() > 256 {
            return Err(wrong());
        }
        Ok(Self {
            owner: owner.into(),
            name: name.into(),
            revision: revision.into(),
        })
    }

    fn repo(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.owner, self.name, self.revision)
    }
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Enough digits of a commit to mean it, as `git` abbreviates them.
fn is_commit_prefix(text: &str) -> bool {
    (7..=40).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The weights among a repository's files, as a folder would be searched; GGUF files are not read,
/// so they are not downloaded either. The one `named`, when it must be that.
fn choose<'a>(files: &'a [String], named: Option<&str>) -> Result<&'a str, String> {
    if let Some(name) = named {
        let found = files.iter().find(|f| *f == name);
        return found.map(String::as_str).ok_or_else(|| name.to_owned());
    }
    for name in NAMED {
        if let Some(found) = files.iter().find(|f| *f == name) {
            return Ok(found);
        }
    }
    for ending in ENDINGS.into_iter().filter(|e| *e != ".gguf") {
        let mut found = files
            .iter()
            .filter(|f| f.ends_with(ending) && !f.contains('/'));
        if let (Some(only), None) = (found.next(), found.next()) {
            return Ok(only);
        }
    }
    Err(format!(
        "{} and a single *{}",
        NAMED.join(", "),
        ENDINGS[..5].join(", *")
    ))
}

/// The shard files that an index names.
fn shards(index: &Path) -> Result<Vec<String>, CheckpointError> {
    let wrong = |reason: String| CheckpointError::ShardIndex {
        path: index.into(),
        reason,
    };
    let json = read_json(index)?;
    let map = json["weight_map"]
        .as_object()
        .ok_or_else(|| wrong("no 'weight_map' object".into()))?;
    let mut names = Vec::new();
    for value in map.values() {
        let name = value.as_str().unwrap_or_default();
        if !is_plain_file_name(name) {
            return Err(wrong(format!(
                "'{name}' is not a file name beside the index"
            )));
        }
        if !names.iter().any(|n| n == name) {
            names.push(name.to_string());
        }
    }
    names.sort();
    Ok(names)
}

/// Whether everything a load needs is in the folder.
fn is_complete(folder: &Path, named: Option<&str>) -> bool {
    if let Some(name) = named {
        return is_plain_file_name(name) && folder.join(name).is_file();
    }
    let files = |name: &&str| folder.join(name).is_file();
    match NAMED.iter().find(|n| files(n)) {
        Some(name) if name.ends_with(".index.json") => shards(&folder.join(name))
            .is_ok_and(|shards| shards.iter().all(|s| folder.join(s).is_file())),
        Some(_) => true,
        None => Checkpoint::open_local(folder, None, None).is_ok(),
    }
}

/// A file of one word, such as a commit or a token. What is no regular file, too large or no text
/// counts as not there: a pipe would be waited for, and a device never ends.
fn read_word(path: &Path) -> Option<String> {
    let mut text = String::new();
    let read = open_regular(path)
        .ok()?
        .take(MAX_WORD + 1)
        .read_to_string(&mut text)
        .ok()?;
    (read as u64 <= MAX_WORD).then_some(text)
}

fn user_home(set: &impl Fn(&str) -> Option<String>) -> PathBuf {
    set("HOME")
        .or_else(|| set("USERPROFILE"))
        .map_or_else(|| PathBuf::from("."), PathBuf::from)
}

/// `~/x` as the user means it; shells do not expand it inside assignments such as `env A=~/x`.
fn expand(path: &str, set: &impl Fn(&str) -> Option<String>) -> PathBuf {
    match path.strip_prefix("~/") {
        Some(rest) => user_home(set).join(rest),
        None => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn from(vars: &[(&str, &str)]) -> Hub {
        let vars: HashMap<String, String> = vars
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect();
        Hub::from_vars(|name| vars.get(name).cloned())
    }

    #[test]
    fn variables_are_read_as_the_hub_library_reads_them() {
        let hub = from(&[("HOME", "/home/u")]);
        assert_eq!(hub.cache, Path::new("/home/u/.cache/huggingface/hub"));
        assert_eq!(hub.endpoint, "https://huggingface.co");
        assert!(!hub.offline && hub.token.is_none());
        let hub = from(&[
            ("HF_HOME", "/data/hf"),
            ("HF_TOKEN", " secret\n"),
            ("HF_ENDPOINT", "http://mirror/"),
            ("HF_HUB_OFFLINE", "YES"),
        ]);
        assert_eq!(hub.cache, Path::new("/data/hf/hub"));
        assert_eq!(hub.token.as_deref(), Some("secret"));
        assert_eq!(hub.endpoint, "http://mirror");
        assert!(hub.offline);
        assert!(!format!("{hub:?}").contains("secret"));
        let hub = from(&[
            ("HF_HOME", "/a"),
            ("HF_HUB_CACHE", "~/b"),
            ("HOME", "/h"),
            ("HF_HUB_OFFLINE", "0"),
        ]);
        assert_eq!(hub.cache, Path::new("/h/b"));
        assert!(!hub.offline);
    }

    #[test]
    fn the_token_file_in_hf_home_counts() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "from-file\n").unwrap();
        let home = dir.path().to_string_lossy().into_owned();
        assert_eq!(
            from(&[("HF_HOME", &home)]).token.as_deref(),
            Some("from-file")
        );
    }

    #[test]
    fn a_word_is_short_and_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("word");
        let size = MAX_WORD as usize;
        std::fs::write(&file, "x".repeat(size)).unwrap();
        assert_eq!(read_word(&file).unwrap().len(), size);
        std::fs::write(&file, "x".repeat(size + 1)).unwrap();
        assert_eq!(read_word(&file), None);
        std::fs::write(&file, b"\xff").unwrap();
        assert_eq!(read_word(&file), None);
        assert_eq!(read_word(dir.path()), None);
        assert_eq!(read_word(&dir.path().join("gone")), None);
    }

    // Reading any of these as a file would wait for a writer that never comes, or never end.
    #[cfg(target_os = "linux")]
    #[test]
    fn pipes_and_devices_hold_no_reference_and_no_token() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_string_lossy().into_owned();
        let pipe = |path: &Path| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let made = std::process::Command::new("mkfifo").arg(path).status();
            assert!(made.is_ok_and(|status| status.success()));
        };
        pipe(&dir.path().join("token"));
        assert_eq!(from(&[("HF_HOME", &home)]).token, None);
        let endless = [("HF_HOME", home.as_str()), ("HF_TOKEN_PATH", "/dev/zero")];
        assert_eq!(from(&endless).token, None);

        let repo = dir.path().join("models--a--b");
        pipe(&repo.join("refs/main"));
        let commit = "0123456789abcdef0123456789abcdef01234567";
        std::fs::create_dir_all(repo.join("snapshots").join(commit)).unwrap();
        let hub = Hub::new(dir.path(), "http://localhost").offline(true);
        let found = hub.snapshot(&Id::parse("a/b").unwrap(), None).unwrap();
        assert_eq!(found.commit(), commit);
        assert!(
            found.notices[0].contains("refs/main"),
            "{:?}",
            found.notices
        );
    }

    #[test]
    fn references_with_path_tricks_are_refused() {
        let id = Id::parse("Zyphra/ZONOS2@refs/pr/1").unwrap();
        assert_eq!(id.folder(), "models--Zyphra--ZONOS2");
        assert_eq!(id.to_string(), "Zyphra/ZONOS2@refs/pr/1");
        for bad in [
            "a",
            "a/",
            "/b",
            "../b",
            "a/..",
            "a/b/c",
            "a/b@",
            "a/b@../x",
            "a/b@x/../y",
            "a\\b/c",
            "a/b@x\ny",
        ] {
            assert!(Id::parse(bad).is_err(), "{bad}");
        }
    }
}
