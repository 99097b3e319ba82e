//! `-u`: drops the privileges of root before the server accepts a client. As in memcached, a
//! process of root does not serve without it.

use anyhow::{Context, ensure};
use rustix::process::geteuid;
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use rustix::{process::Gid, process::Uid};

/// A user that a process of root can become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    uid: Uid,
    gid: Gid,
}

/// The user named `name` (`-u`), if this process runs as root; no other process can become one.
///
/// # Errors
///
/// If a process of root was not told whom to become, or there is no such user; the text says what
/// to do.
pub fn look_up(name: Option<&str>) -> anyhow::Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let name = name.filter(|name| !name.is_empty()).context(
        "can't run as root without the -u switch: give -u USER to become that user, or -u root to \
         stay root",
    )?;
    let users = std::fs::read_to_string("/etc/passwd").context("-u: cannot read /etc/passwd")?;
    find(&users, name).map(Some).with_context(|| format!("-u: there is no user '{name}'"))
}

impl User {
    /// Makes this process run as the user.
    ///
    /// Requires: the process has one thread, because only the calling thread and those it starts
    /// later are changed.
    ///
    /// # Errors
    ///
    /// If the system refuses the change.
    pub fn assume(self) -> anyhow::Result<()> {
        set_thread_groups(&[self.gid]).context("cannot give up the groups of root")?;
        set_thread_gid(self.gid).context("cannot give up the group of root")?;
        set_thread_uid(self.uid).context("cannot give up the rights of root")?;
        ensure!(geteuid() == self.uid, "the system did not change the user");
        Ok(())
    }
}

/// The user of `name` in a list in the format of `/etc/passwd`.
fn find(users: &str, name: &str) -> Option<User> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    let uid = Uid::from_raw(fields.next()?.parse().ok()?);
    let gid = Gid::from_raw(fields.next()?.parse().ok()?);
    Some(User { uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\nmemcache:x:101:102::/:/bin/false\n";
        let user = User { uid: Uid::from_raw(101), gid: Gid::from_raw(102) };
        assert_eq!(find(users, "memcache"), Some(user));
        assert_eq!(find(users, "mem"), None);
        assert_eq!(find("broken\n", "broken"), None);
    }
}
