//! How a backup takes the place of an owner whose life is over.
//!
//! The metadata names it the owner first, under a new epoch. It seals what it has in the name of
//! the life before, so that nothing of that is acknowledged any more, loads it, a slice at a time,
//! since others wait for its answers meanwhile, and makes the other holders its backups in place:
//! they seal what they have, say how far they came, adopt it, and are sent what differs. Where they
//! cannot, all is copied to a new set. When that is committed it serves, and makes up for backups
//! that are missing as for any others. If it is gone before, the next holder does the same from
//! what it has itself; each has all that was acknowledged.

use std::collections::BTreeMap;

use super::items::KeptItem;
use super::migration::{MoveMessage, overlap};
use super::service::{ChunkService, Wish};
use super::store::ChunkStore;
use crate::backup::{
    BackupMessage, Copies, CopySettings, ItemKey, NAMED_CHANGES_MAX, Name, Vault, Wanted,
};
use crate::ids::{ChunkId, IdRange};
use crate::overlay::{Inheritance, Peer, Refusal};
use crate::wire::Wire;

/// Ids that this node is about to recover, and where it goes on.
#[derive(Debug)]
pub(super) struct Loading {
    heritage: Inheritance,
    next: u64,
    /// Named items that are loaded.
    items: Vec<ItemKey>,
    /// What could not be read.
    damaged: Vec<ChunkId>,
    /// Until when it waits for the other holders to say how far they are, and when it asks again.
    waits_until_ms: Option<u64>,
    next_ask_ms: u64,
    /// How far each is, and what it has beyond what is loaded, if it knows.
    sealed: BTreeMap<Peer, (u64, Option<Vec<Name>>)>,
}

impl Loading {
    /// Other holders of chunks who have not said how far they are.
    fn unsealed(&self, copies: &Copies) -> impl Iterator<Item = Peer> {
        let is_named = self.heritage.ids.first().creator().is_named();
        let others = self.heritage.holders[1..].iter().copied().filter(move |_| !is_named);
        others.filter(|peer| copies.is_choosable(*peer) && !self.sealed.contains_key(peer))
    }

    /// Whether one of them may say so yet.
    fn waits(&self, now_ms: u64, copies: &Copies) -> bool {
        let is_early = self.waits_until_ms.is_none_or(|until_ms| now_ms < until_ms);
        is_early && self.unsealed(copies).next().is_some()
    }
}

impl<S: ChunkStore> ChunkService<S> {
    /// What is being recovered, loaded or not.
    fn all_heirs(&self) -> impl Iterator<Item = &Inheritance> {
        self.heirs.values().chain(self.loading.iter().map(|loading| &loading.heritage))
    }

    /// Whether an id is being recovered.
    pub(super) fn is_heir(&self, id: ChunkId) -> bool {
        self.all_heirs().any(|heir| heir.ids.contains(id))
    }

    /// Whether some of these ids are being recovered.
    pub(super) fn inherits(&self, ids: IdRange) -> bool {
        self.all_heirs().any(|heir| overlap(heir.ids, ids))
    }

    /// In whose name the ids of a change are recovered, if they are.
    pub fn source(&self, change: u64) -> Option<Peer> {
        self.heirs.get(&change).map(|heir| heir.source)
    }

    /// Ids that are being recovered.
    pub fn heirs(&self) -> usize {
        self.all_heirs().count()
    }

    /// A leader says that this node owns ids and has to recover them. It says so until they are
    /// served, so what is not possible now may be later.
    pub fn inherit(&mut self, heritage: &Inheritance, vault: &mut Vault) {
        let ids = heritage.ids;
        let is_owned = self.owned.over(ids.start()..ids.end()).next().is_some();
        // Of items of those ids some may be here yet: older ones, or half of the same heritage.
        let is_mine = heritage.holders.first() == Some(&self.me);
        if !is_mine || is_owned || self.is_removing(ids) || self.inherits(ids) {
            return;
        }
        // The other holders have copies for as long as nothing else is committed.
        if !self.copies.is_enough(self.joining(heritage).len()) {
            return;
        }
        // What was on its way here came from the life that is over, or is older.
        self.forget_incoming(ids);
        vault.seal(heritage.source);
        self.loading.push_back(Loading {
            heritage: heritage.clone(),
            next: ids.start(),
            items: Vec::new(),
            damaged: Vec::new(),
            waits_until_ms: None,
            next_ask_ms: 0,
            sealed: BTreeMap::new(),
        });
    }

    /// Asks other holders how far they are.
    fn ask_holders(&mut self, now_ms: u64, vault: &Vault, out: &mut Vec<Wish>) {
        let CopySettings { silent_ms, retry_ms, .. } = self.limits.copies;
        let copies = &self.copies;
        for loading in self.loading.iter_mut().filter(|loading| now_ms >= loading.next_ask_ms) {
            let Inheritance { ids, source, .. } = loading.heritage;
            loading.next_ask_ms = now_ms + retry_ms;
            loading.waits_until_ms.get_or_insert(now_ms + silent_ms);
            let last = vault.last(source);
            for peer in loading.unsealed(copies) {
                let message = BackupMessage::Seal { source, ids, last };
                out.push(Wish::Backup(Wanted::Send(peer, message)));
            }
        }
    }

    /// Another holder said how far it is.
    pub(super) fn on_sealed(
        &mut self,
        from: Peer,
        (source, ids): (Peer, IdRange),
        last: u64,
        beyond: Option<&[Name]>,
    ) {
        let is_meant = |loading: &&mut Loading| {
            let Inheritance { ids: loaded, source: from, .. } = loading.heritage;
            (loaded, from) == (ids, source)
        };
        if let Some(loading) = self.loading.iter_mut().find(is_meant)
            && loading.heritage.holders[1..].contains(&from)
        {
            loading.sealed.insert(from, (last, beyond.map(<[Name]>::to_vec)));
        }
    }

    /// Who can be a backup in place, and what each must be sent.
    fn adopters(&self, loading: &Loading, vault: &Vault) -> Vec<(Peer, Vec<Name>)> {
        let Inheritance { ids, source, .. } = loading.heritage;
        let mut adopters = Vec::new();
        if ids.first().creator().is_named() {
            return adopters;
        }
        for (peer, (last, beyond)) in &loading.sealed {
            let own = vault.beyond(source, *last, ids);
            if let (Some(beyond), Some(own)) = (beyond, own)
                && self.copies.is_choosable(*peer)
            {
                let damaged = loading.damaged.iter().map(|id| Name::from(*id));
                let names = beyond.iter().filter(|name| ids.contains(name.id));
                let mut names: Vec<Name> = names.copied().chain(own).chain(damaged).collect();
                names.sort_unstable();
                names.dedup();
                adopters.push((*peer, names));
            }
        }
        adopters
    }

    /// Who is to be a backup of what is recovered: the other holders first.
    fn joining(&self, heritage: &Inheritance) -> Vec<Peer> {
        let holders = heritage.holders[1..].iter().copied();
        let mut joining: Vec<Peer> =
            holders.filter(|peer| self.copies.is_choosable(*peer)).collect();
        joining.extend(self.copies.choose_more(heritage.ids, &joining));
        joining
    }

    /// Loads a part of what is to be recovered; what is loaded is sent to its backups. Returns ids
    /// of chunks and items that this node should have and cannot read, and in whose name.
    pub fn load(
        &mut self,
        now_ms: u64,
        vault: &mut Vault,
        out: &mut Vec<Wish>,
    ) -> Vec<(Peer, ChunkId)> {
        self.ask_holders(now_ms, vault, out);
        let (mut left, mut damaged) = (self.limits.load_ids, Vec::new());
        for _ in 0..self.loading.len() {
            let looked = self.load_next(left, now_ms, vault, &mut damaged);
            left = left.saturating_sub(looked);
            if left == 0 {
                break;
            }
        }
        damaged
    }

    /// Loads a part of one heritage: so many ids, or items where ids are sparse. Returns how many
    /// were looked at.
    fn load_next(
        &mut self,
        most: u64,
        now_ms: u64,
        vault: &mut Vault,
        damaged: &mut Vec<(Peer, ChunkId)>,
    ) -> u64 {
        let Some(mut loading) = self.loading.pop_back() else { return 0 };
        let Inheritance { ids, source, .. } = loading.heritage;
        let is_named = ids.first().creator().is_named();
        let mut looked = 1;
        if loading.next < ids.end() && !(is_named && self.heirs.len() >= NAMED_CHANGES_MAX) {
            let rest = IdRange::from_bits(loading.next, ids.end());
            let end = match is_named {
                true => vault.end_of(source, rest, most),
                false => ids.end().min(loading.next.saturating_add(most)),
            };
            let slice = IdRange::from_bits(loading.next, end);
            if !is_named {
                self.remove_all(slice);
            }
            let (store, mut is_stored, mut spoilt) = (&mut self.store, true, Vec::new());
            let found = vault.recover(source, slice, &mut |id, value| {
                if !is_named {
                    is_stored &= store.write(id, &value).is_ok();
                } else if let Ok(kept) = KeptItem::decode_all(&value) {
                    is_stored &= store.restore_item(&kept).is_ok();
                    loading.items.push((id, kept.key));
                } else {
                    spoilt.push(id);
                }
            });
            looked = if is_named { found.copies.max(1) } else { slice.len() };
            if !is_stored {
                self.remove_all(IdRange::from_bits(ids.start(), end));
                return looked;
            }
            self.sessions.import(slice, &found.export, now_ms);
            loading.damaged.extend(found.damaged.into_iter().chain(spoilt));
            loading.next = end;
        }
        let joining = self.joining(&loading.heritage);
        let is_loaded = loading.next >= ids.end();
        if !is_loaded
            || loading.waits(now_ms, &self.copies)
            || !self.copies.is_enough(joining.len())
        {
            // Others' turn, if there are any.
            self.loading.push_front(loading);
            return looked;
        }
        damaged.extend(loading.damaged.iter().map(|id| (source, *id)));
        let adopters = self.adopters(&loading, vault);
        let number = if !adopters.is_empty() && self.copies.is_enough(adopters.len()) {
            let sessions = &self.sessions;
            let export = |ids: IdRange| sessions.export(ids, now_ms).sessions;
            self.copies.join_in_place((ids, source), adopters, &mut self.store, &export)
        } else if is_named {
            self.copies.join_with(ids, joining, loading.items)
        } else {
            self.copies.join(ids, Vec::new(), joining, false)
        };
        self.heirs.insert(number, loading.heritage);
        looked
    }

    /// Removes the chunks of ids.
    pub(super) fn remove_all(&mut self, ids: IdRange) {
        if ids.first().creator().is_named() {
            return self.pass.remove_later(ids);
        }
        for bits in ids.start()..ids.end() {
            let id = ChunkId::from_bits(bits).expect("it lies in a range");
            if self.store.remove(id) {
                self.sessions.release(id);
            }
        }
    }

    /// Ids are not this node's any more.
    fn lose(&mut self, ids: IdRange) {
        self.owned.assign(ids.start()..ids.end(), None);
        self.frozen.assign(ids.start()..ids.end(), None);
        self.copies.lose(ids);
        self.remove_all(ids);
    }

    /// What came of a [`Wanted::Commit`].
    pub fn on_committed(
        &mut self,
        number: u64,
        result: Result<u64, Refusal>,
        clock: &mut dyn FnMut() -> u64,
        out: &mut Vec<Wish>,
    ) {
        let Some((ids, members)) = self.copies.on_committed(number, result) else { return };
        match (self.heirs.remove(&number), result) {
            (Some(heir), Ok(epoch)) => {
                self.moved.assign(ids.start()..ids.end(), None);
                self.owned.assign(ids.start()..ids.end(), Some(epoch));
                self.copies.bury(heir.source, ids, &members);
            }
            // It is told again, if it still is the heir.
            (Some(_), Err(_)) => self.remove_all(ids),
            (None, Err(Refusal::NotOwner)) => self.lose(ids),
            (None, _) => {}
        }
        self.release(clock, out);
    }

    /// Time went on: backups that are silent or missing.
    pub(super) fn tick_copies(&mut self, now_ms: u64, out: &mut Vec<Wish>) {
        let mut wanted = Vec::new();
        let (outgoing, sessions) = (&self.outgoing, &self.sessions);
        let is_leaving = |ids: IdRange| outgoing.values().any(|move_| move_.is_leaving(ids));
        let export = |ids: IdRange| sessions.export(ids, now_ms).sessions;
        self.copies.on_tick(now_ms, &is_leaving, &mut self.store, &export, &mut wanted);
        for wanted in wanted {
            match wanted {
                Wanted::Aborted(number) => self.aborted(number, out),
                wanted => out.push(Wish::Backup(wanted)),
            }
        }
        self.release(&mut || now_ms, out);
        let copies = &self.copies;
        self.held.keep(|version| copies.awaits(version));
    }

    fn aborted(&mut self, number: u64, out: &mut Vec<Wish>) {
        if let Some(heir) = self.heirs.remove(&number) {
            return self.remove_all(heir.ids);
        }
        let found = self.incoming.iter().find(|(_, incoming)| incoming.change == Some(number));
        if let Some((source, number)) = found.map(|(name, _)| *name) {
            self.forget(source, number);
            out.push(Wish::Send(source, MoveMessage::Declined { number }));
        }
    }
}
