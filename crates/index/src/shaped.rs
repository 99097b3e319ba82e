//! Engines whose buckets have a number of slots that is known when they are compiled, chosen from a
//! few when they are opened.

/// Makes `$engine($shape)` a [`crate::Engine`] and `$worker($shaped_worker)` its worker: `Store<N>`
/// and `StoreWorker<N>` of the module that this stands in, for one of the numbers named. The module
/// says with `fn open(&Configuration) -> Result<$shape, OpenError>` which.
macro_rules! shaped_engine {
    (
        $name:literal, $engine:ident($shape:ident), $worker:ident($shaped_worker:ident):
        $($variant:ident = $slots:literal),+
    ) => {
        enum $shape {
            $($variant(Store<$slots>)),+
        }

        enum $shaped_worker<'i> {
            $($variant(StoreWorker<'i, $slots>)),+
        }

        impl $crate::Store for $engine {
            const NAME: &'static str = $name;
            type Worker<'i> = $worker<'i>;

            fn worker(&self) -> $worker<'_> {
                $worker(match &self.0 {
                    $($shape::$variant(store) => {
                        $shaped_worker::$variant(StoreWorker::new(store))
                    })+
                })
            }

            fn seed(&self) -> &amalgam_op::HashSeed {
                match &self.0 { $($shape::$variant(store) => store.memory.seed()),+ }
            }

            fn statistics(&self) -> $crate::Statistics {
                match &self.0 { $($shape::$variant(store) => store.statistics()),+ }
            }

            fn set_memory_limit(&self, bytes: usize) {
                match &self.0 { $($shape::$variant(store) => store.memory.set_limit(bytes)),+ }
            }
        }

        impl $crate::Engine for $engine {
            fn open(
                configuration: &$crate::Configuration,
            ) -> Result<Self, $crate::OpenError> {
                open(configuration).map(Self)
            }

            fn maintenance_signal(&self) -> &$crate::maintenance::Signal {
                match &self.0 { $($shape::$variant(store) => &store.signal),+ }
            }

            fn maintain(worker: &mut $worker<'_>, now: &amalgam_op::Now) -> bool {
                match &mut worker.0 {
                    $($shaped_worker::$variant(worker) => worker.maintain(now)),+
                }
            }

            fn evictions(&self) -> Option<&$crate::mem::Evictions> {
                match &self.0 { $($shape::$variant(store) => Some(store.memory.evictions())),+ }
            }

            fn compare_exchange_item(
                worker: &mut $worker<'_>,
                hash: u64,
                old: $crate::mem::ItemRef,
                new: Option<$crate::mem::ItemRef>,
            ) -> bool {
                match &mut worker.0 {
                    $($shaped_worker::$variant(worker) => {
                        worker.compare_exchange_item(hash, old, new)
                    })+
                }
            }
        }

        impl $crate::Worker for $worker<'_> {
            #[inline]
            fn get_batch(
                &mut self,
                keys: &[amalgam_op::Key<'_>],
                now: &amalgam_op::Now,
                sink: &mut impl $crate::Sink,
            ) -> usize {
                match &mut self.0 {
                    $($shaped_worker::$variant(worker) => worker.get_batch(keys, now, sink)),+
                }
            }

            #[inline]
            fn apply(
                &mut self,
                op: &amalgam_op::Op<'_>,
                now: &amalgam_op::Now,
                sink: &mut impl $crate::Sink,
            ) -> amalgam_op::Outcome {
                match &mut self.0 {
                    $($shaped_worker::$variant(worker) => worker.apply(op, now, sink)),+
                }
            }

            #[inline]
            fn prefetch(&self, key: &amalgam_op::Key<'_>) {
                match &self.0 { $($shaped_worker::$variant(worker) => worker.prefetch(key)),+ }
            }

            fn scan(
                &mut self,
                from: $crate::Cursor,
                budget: usize,
                visit: &mut dyn FnMut(&amalgam_op::ItemView<'_>) -> std::ops::ControlFlow<()>,
            ) -> Option<$crate::Cursor> {
                match &mut self.0 {
                    $($shaped_worker::$variant(worker) => worker.scan(from, budget, visit)),+
                }
            }

            #[inline]
            fn quiesce(&mut self) {
                match &mut self.0 { $($shaped_worker::$variant(worker) => worker.quiesce()),+ }
            }
        }
    };
}
pub(crate) use shaped_engine;
