//! The cache between processes: many at once, killed ones, a full disk, folders that cannot be
//! written or trusted, damaged files. A lookup always returns what was stored, or the entry is made
//! again.
//!
//! The processes are this test binary, started again for its test `worker`, which does what
//! `HYPATIA_CACHE_WORK` says. No device is needed: the cache takes keys and bytes.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hypatia_cache::{Cache, Key, KeyMaker, Kind, State, Store, private_folder};

/// Processes at once, and how often each asks.
const PROCESSES: usize = 64;
const ROUNDS: usize = 100;
/// Entries that they share.
const KEYS: u64 = 24;
/// Writers that are killed at some time.
const KILLED: u64 = 200;

fn key(i: u64) -> Key {
    KeyMaker::default().part(i.to_le_bytes()).key()
}

/// What belongs under a key: long enough that a write can be caught in its middle.
fn content(i: u64) -> Vec<u8> {
    let mut state = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..20_000 + 1_000 * (i as usize % 64))
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// This binary as a worker on a cache folder.
fn work(what: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    worker_of(&mut command, what, folder);
    command
}

fn worker_of(command: &mut Command, what: &str, folder: &Path) {
    command
        .args(["--exact", "worker", "--ignored", "--nocapture", "--test-threads", "1"])
        .env("HYPATIA_CACHE_WORK", what)
        .env("HYPATIA_CACHE", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

/// The leftovers of writers: files that were never renamed to an entry.
fn leftovers(folder: &Path) -> usize {
    let part = |e: &std::fs::DirEntry| e.path().extension().is_some_and(|e| e == "part");
    std::fs::read_dir(folder.join("cubin")).map_or(0, |d| d.flatten().filter(part).count())
}

/// This binary as a worker that cannot write a whole entry: the system ends the write in the middle
/// with a signal that kills the worker, or, with `survives`, with an error.
fn work_on_short_files(what: &str, folder: &Path, survives: bool) -> Command {
    let mut command = Command::new("sh");
    let trap = if survives { "trap '' XFSZ; " } else { "" };
    // 32 blocks of 512 bytes, less than any entry.
    let line = format!("{trap}ulimit -c 0; ulimit -f 32; exec \"$0\" \"$@\"");
    command.args(["-c", &line]).arg(std::env::current_exe().unwrap());
    worker_of(&mut command, what, folder);
    command
}

/// The output of a worker that succeeded.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    text
}

/// The number behind a word that a worker said.
fn number(text: &str, word: &str) -> usize {
    let behind = text.lines().find_map(|l| l.split_once(word)).unwrap_or_else(|| panic!("no `{word}` in {text}")).1;
    behind.trim().parse().unwrap()
}

fn cache() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    Cache::at(&cache).unwrap();
    (folder, cache)
}

fn parts(store: &Store) -> usize {
    store.list().unwrap().iter().filter(|s| s.state == State::Partial).count()
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn am_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

/// No test: what the processes do that the tests start.
#[test]
#[ignore = "started by the other tests"]
fn worker() {
    let Ok(what) = std::env::var("HYPATIA_CACHE_WORK") else { return };
    match what.as_str() {
        "share" => share(),
        "write" => write_for_ever(),
        "fill" => fill(),
        "ask" => ask(),
        other => panic!("{other}"),
    }
}

/// Asks for entries again and again, in an order of its own. What was there once stays.
fn share() {
    let cache = Cache::of_user().unwrap();
    let (mut made, mut had) = (0, [false; KEYS as usize]);
    let mut at = u64::from(std::process::id());
    for _ in 0..ROUNDS {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let i = (at >> 33) % KEYS;
        if at >> 20 & 7 == 0 {
            // What others read at this moment is written anew.
            cache.cubins.put(&key(i), &content(i));
        }
        let (bytes, new) = cache.cubins.get_or_make(&key(i), || Ok::<_, ()>(content(i))).unwrap();
        assert!(bytes == content(i), "entry {i} is wrong");
        assert!(!(new && had[i as usize]), "entry {i} was there and is gone");
        had[i as usize] = true;
        made += usize::from(new);
    }
    assert_eq!(cache.trouble(), None);
    println!("made {made}");
}

/// Writes until it is killed.
fn write_for_ever() {
    let cache = Cache::of_user().unwrap();
    println!("ready");
    for i in (0..).map(|i| i % KEYS) {
        cache.cubins.put(&key(i), &content(i));
    }
}

/// Keeps more than there is room for; everything must still be answered.
fn fill() {
    let cache = Cache::of_user().unwrap();
    let mut made = 0;
    for i in (0..KEYS).chain(0..KEYS) {
        let (bytes, new) = cache.cubins.get_or_make(&key(i), || Ok::<_, ()>(content(i))).unwrap();
        assert!(bytes == content(i), "entry {i} is wrong");
        made += usize::from(new);
    }
    println!("made {made}");
    println!("trouble {}", cache.trouble().unwrap_or_default());
    println!("parts {}", parts(&cache.cubins));
}

/// Asks for one entry.
fn ask() {
    let answer = Cache::of_user().map(|cache| {
        let (bytes, new) = cache.cubins.get_or_make(&key(1), || Ok::<_, ()>(content(1))).unwrap();
        assert!(bytes == content(1));
        println!("made {}", usize::from(new));
        println!("trouble {}", cache.trouble().unwrap_or_default());
    });
    if let Err(why) = answer {
        println!("refused {why}");
    }
}

#[test]
fn many_processes_share_one_folder() {
    let (_keep, folder) = cache();
    let workers: Vec<_> = (0..PROCESSES).map(|_| work("share", &folder).spawn().unwrap()).collect();
    let made: usize = workers.into_iter().map(|w| number(&said(&w.wait_with_output().unwrap()), "made")).sum();
    // Those that ask at the same time may all make an entry; nobody makes it twice.
    assert!((1..=PROCESSES * KEYS as usize).contains(&made), "{made}");
    let store = Store::open(&folder, Kind::Cubin);
    let seen = store.list().unwrap();
    assert_eq!(seen.len(), KEYS as usize);
    assert!(seen.iter().all(|s| s.state == State::Good), "{seen:?}");
    assert_eq!(number(&said(&work("share", &folder).output().unwrap()), "made"), 0, "a later process finds all");
}

#[test]
fn killed_writers_leave_nothing_wrong_and_nothing_for_long() {
    use std::io::{BufRead, BufReader};
    let (_keep, folder) = cache();
    // The first one certainly dies in the middle of its first write.
    assert!(!work_on_short_files("fill", &folder, false).output().unwrap().status.success());
    assert_eq!(leftovers(&folder), 1, "the writer was not killed in the middle of a write");
    for i in 0..KILLED {
        let mut child = work("write", &folder).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        out.lines().find(|l| l.as_ref().is_ok_and(|l| l.contains("ready"))).unwrap().unwrap();
        // Somewhere in or between its writes, each of which takes a fraction of a millisecond.
        let until = Instant::now() + Duration::from_micros(137 * i % 3001);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let left = leftovers(&folder);
        assert!(left <= 1, "each process removes what the one before it left, but {left} remain after {i} kills");
    }
    let store = Store::open(&folder, Kind::Cubin);
    assert_eq!(parts(&store), 0);
    for i in 0..KEYS {
        assert!(store.get(&key(i)).is_none_or(|bytes| bytes == content(i)), "entry {i}");
    }
    assert!(store.list().unwrap().iter().all(|s| s.state == State::Good));
}

#[test]
fn a_sweep_leaves_a_writer_at_work_alone() {
    let (_keep, folder) = cache();
    let cubins = folder.join("cubin");
    private_folder(&cubins).unwrap();
    let part = cubins.join("some.1-2-3.part");
    let file = std::fs::File::create(&part).unwrap();
    file.lock().unwrap();
    Store::open(&folder, Kind::Cubin);
    assert!(part.exists());
    drop(file);
    Store::open(&folder, Kind::Cubin);
    assert!(!part.exists());
}

/// A limit on the size of files stands for a full disk.
#[test]
fn a_write_that_stops_in_the_middle_is_told_and_harmless() {
    for survives in [true, false] {
        let (_keep, folder) = cache();
        let output = work_on_short_files("fill", &folder, survives).output().unwrap();
        let store = Store::open(&folder, Kind::Cubin);
        if survives {
            let text = said(&output);
            assert_eq!(number(&text, "made"), 2 * KEYS as usize, "nothing fits");
            assert_eq!(number(&text, "parts"), 0);
            assert!(text.contains("cannot be written"), "{text}");
        } else {
            assert!(!output.status.success());
        }
        assert_eq!(store.list().unwrap().len(), 0);
    }
}

/// A disk of 256 KiB, mounted in a namespace of the worker's own where that is allowed.
#[test]
fn a_full_disk_is_told_and_harmless() {
    let (_keep, folder) = cache();
    let mut command = Command::new("unshare");
    let line = "mount -t tmpfs -o size=256k,mode=700 none \"$HYPATIA_CACHE\" || exit 77; exec \"$0\" \"$@\"";
    command.args(["-rm", "sh", "-c", line]).arg(std::env::current_exe().unwrap());
    worker_of(&mut command, "fill", &folder);
    let Ok(output) = command.output() else {
        return eprintln!("SKIPPED: there is no `unshare`");
    };
    if !String::from_utf8_lossy(&output.stdout).contains("running 1 test") {
        return eprintln!("SKIPPED: no disk can be mounted: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = said(&output);
    let made = number(&text, "made");
    assert!(made > KEYS as usize && made < 2 * KEYS as usize, "some fit, some do not: {text}");
    assert_eq!(number(&text, "parts"), 0);
    assert!(text.contains("cannot be written"), "{text}");
}

#[test]
fn a_folder_that_cannot_be_written_is_still_read() {
    let (keep, folder) = cache();
    let store = Store::open(&folder, Kind::Cubin);
    store.put(&key(1), &content(1));
    let ask = |made: usize, trouble: bool| {
        let exe = keep.path().join("exe");
        let mut command = if am_root() {
            // Root may write everywhere: another user asks, who must be able to reach the binary.
            if !exe.exists() {
                mode(keep.path(), 0o755);
                // Another process copies it: a file that this process has open for writing would
                // stay open in the children that other tests fork meanwhile, and could not be run.
                let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&exe).status().unwrap();
                assert!(copied.success());
                mode(&exe, 0o755);
            }
            let mut command = Command::new(&exe);
            command.uid(65_534).gid(65_534);
            command
        } else {
            Command::new(std::env::current_exe().unwrap())
        };
        worker_of(&mut command, "ask", &folder);
        let text = said(&command.output().unwrap());
        assert_eq!((number(&text, "made"), text.contains("cannot be written")), (made, trouble), "{text}");
    };
    if am_root() {
        for path in [&folder, &folder.join("cubin"), &store.file(&key(1))] {
            chown(path, Some(65_534), Some(65_534)).unwrap();
        }
    }
    mode(&folder.join("cubin"), 0o500);
    mode(&folder, 0o500);
    ask(0, false);
    mode(&folder.join("cubin"), 0o700);
    std::fs::remove_file(store.file(&key(1))).unwrap();
    mode(&folder.join("cubin"), 0o500);
    ask(1, true);
    ask(1, true);
    mode(&folder.join("cubin"), 0o700);
    ask(1, false);
    ask(0, false);
    mode(&folder, 0o700);
}

/// What a store gives for an entry whose file was changed, and that it is good again afterwards.
fn rebuilt(store: &Store, small: &[u8], what: &str) {
    assert_eq!(store.get(&key(1)), None, "{what}");
    let (bytes, made) = store.get_or_make(&key(1), || Ok::<_, ()>(small.to_vec())).unwrap();
    assert!(made && bytes == small, "{what}");
    assert_eq!(store.get(&key(1)).as_deref(), Some(small), "{what}");
}

#[test]
fn every_flipped_byte_and_every_cut_is_noticed_and_made_good() {
    let (_keep, folder) = cache();
    let store = Store::open(&folder, Kind::Cubin);
    let small = &content(1)[..700];
    store.put(&key(1), small);
    let path = store.file(&key(1));
    let good = std::fs::read(&path).unwrap();
    assert!(good.len() > small.len() + 64);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bad).unwrap();
        rebuilt(&store, small, &format!("byte {at}"));
        std::fs::write(&path, &good[..at]).unwrap();
        rebuilt(&store, small, &format!("cut at {at}"));
    }
    std::fs::write(&path, [&good[..], b"more"].concat()).unwrap();
    rebuilt(&store, small, "longer");
    assert_eq!(std::fs::read(&path).unwrap(), good, "the same content makes the same file");
    // A good file under another's name.
    std::fs::copy(&path, store.file(&key(2))).unwrap();
    assert_eq!(store.get(&key(2)), None);
}

#[test]
fn links_pipes_folders_and_files_of_others_are_no_entries() {
    let (keep, folder) = cache();
    let store = Store::open(&folder, Kind::Cubin);
    let small = b"machine code";
    store.put(&key(1), small);
    let path = store.file(&key(1));
    let elsewhere = keep.path().join("elsewhere");
    std::fs::copy(&path, &elsewhere).unwrap();
    let why = || match &store.list().unwrap()[0].state {
        State::Bad(why) => why.clone(),
        other => panic!("{other:?}"),
    };

    std::fs::remove_file(&path).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert!(why().contains("symbolic link"));
    rebuilt(&store, small, "a link");
    assert!(path.symlink_metadata().unwrap().is_file() && elsewhere.is_file(), "the link is replaced, not followed");

    for bits in [0o620, 0o602, 0o666] {
        mode(&path, bits);
        assert!(why().contains("others may write"), "{}", why());
        rebuilt(&store, small, "writable by others");
    }

    std::fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(why().contains("not a file"));
    rebuilt(&store, small, "a pipe");

    if am_root() {
        chown(&path, Some(65_534), None).unwrap();
        assert!(why().contains("belongs to user 65534"), "{}", why());
        rebuilt(&store, small, "another user's");
    } else {
        eprintln!("SKIPPED another user's file: only root can give files away");
    }

    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(why().contains("not a file"));
    let (bytes, made) = store.get_or_make(&key(1), || Ok::<_, ()>(small.to_vec())).unwrap();
    assert!(made && bytes == small);
    assert!(store.trouble().unwrap().contains("cannot be written"), "{:?}", store.trouble());
    store.clear().unwrap();
    assert!(path.is_dir(), "a folder is nobody's that the cache knows");
}

#[test]
fn folders_that_are_links_or_not_the_users_alone_are_refused() {
    let (keep, folder) = cache();
    let refused = |folder: &Path, why: &str| {
        let text = said(&work("ask", folder).output().unwrap());
        let line = text.lines().find(|l| l.contains("refused")).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains(why) && line.contains(&folder.display().to_string()), "{line}");
    };
    let link = keep.path().join("link");
    symlink(&folder, &link).unwrap();
    refused(&link, "symbolic link");
    let nowhere = keep.path().join("nowhere");
    symlink(keep.path().join("missing"), &nowhere).unwrap();
    refused(&nowhere, "symbolic link");
    for bits in [0o720, 0o702, 0o777] {
        mode(&folder, bits);
        refused(&folder, "chmod 700");
    }
    mode(&folder, 0o700);
    let file = keep.path().join("file");
    std::fs::write(&file, "").unwrap();
    refused(&file, "not a folder");
    if am_root() {
        chown(&folder, Some(65_534), None).unwrap();
        refused(&folder, "belongs to user 65534");
        chown(&folder, Some(0), None).unwrap();
    } else {
        eprintln!("SKIPPED another user's folder: only root can give folders away");
    }
    assert!(said(&work("ask", &folder).output().unwrap()).contains("made 1"));
    let modes = |path: &Path| path.symlink_metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(modes(&folder.join("cubin")), 0o700);

    // The same for the folder of a store within a good cache: nothing is read from it or written
    // into it.
    let cubins = folder.join("cubin");
    let store = Store::open(&folder, Kind::Cubin);
    let entry = store.file(&key(1));
    assert_eq!(modes(&entry), 0o600);
    mode(&cubins, 0o770);
    assert_eq!(store.get(&key(1)), None);
    let text = said(&work("ask", &folder).output().unwrap());
    assert!(text.contains("made 1") && text.contains("others may write"), "{text}");
    mode(&cubins, 0o700);
    std::fs::rename(&cubins, keep.path().join("moved")).unwrap();
    symlink(keep.path().join("moved"), &cubins).unwrap();
    assert_eq!(store.get(&key(1)), None);
    assert!(store.list().unwrap_err().contains("symbolic link"));
    assert!(store.clear().unwrap_err().contains("symbolic link"));
    assert!(keep.path().join("moved").join(entry.file_name().unwrap()).exists());
}

#[test]
fn clear_removes_what_is_the_caches_and_nothing_else() {
    let (_keep, folder) = cache();
    let cache = Cache::at(&folder).unwrap();
    for store in cache.stores() {
        store.put(&key(1), b"one");
        store.put(&key(2), b"two");
    }
    let cubins = folder.join("cubin");
    std::fs::write(cubins.join("notes.txt"), "mine").unwrap();
    std::fs::write(cubins.join("left.1-2-3.part"), "half").unwrap();
    std::fs::write(cache.cubins.file(&key(3)), "damaged").unwrap();
    std::fs::create_dir(cubins.join("folder")).unwrap();
    let removed: Vec<usize> = cache.stores().iter().map(|s| s.clear().unwrap().len()).collect();
    assert_eq!(removed, [4, 2, 2, 2]);
    let left: Vec<String> =
        std::fs::read_dir(&cubins).unwrap().flatten().map(|e| e.file_name().into_string().unwrap()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(!folder.join("choice").exists() && !folder.join("verdict").exists());
    cache.choices.put(&key(1), b"one");
    assert_eq!(cache.choices.get(&key(1)).as_deref(), Some(&b"one"[..]));
}
