import java.util.HashMap;

/** Java's own map from ids to owners: arguments are ids, migrations, gets a round, rounds. */
public final class HashMapIds {
    private static long mix(long number) {
        long x = number + 0x9e3779b97f4a7c15L;
        x = (x ^ (x >>> 30)) * 0xbf58476d1ce4e5b9L;
        x = (x ^ (x >>> 27)) * 0x94d049bb133111ebL;
        return x ^ (x >>> 31);
    }

    private static long used() {
        Runtime runtime = Runtime.getRuntime();
        for (int i = 0; i < 3; i++) {
            System.gc();
        }
        return runtime.totalMemory() - runtime.freeMemory();
    }

    public static void main(String[] arguments) {
        long ids = Long.parseLong(arguments[0]);
        int moves = Integer.parseInt(arguments[1]);
        int gets = Integer.parseInt(arguments[2]);
        int rounds = Integer.parseInt(arguments[3]);
        long base = 1L << 48;
        long before = used();
        HashMap<Long, Short> owners = new HashMap<>((int) Math.min(1 << 30, ids * 4 / 3 + 1));
        for (long id = 0; id < ids; id++) {
            owners.put(base + id, (short) 1);
        }
        for (long i = 0; i < moves; i++) {
            owners.put(base + Long.remainderUnsigned(mix(i), ids), (short) (2 + (mix(~i) >>> 40) % 999));
        }
        long bytes = used() - before;
        long[] asked = new long[gets];
        for (int i = 0; i < gets; i++) {
            asked[i] = base + Long.remainderUnsigned(mix(i + 7L * moves), ids);
        }
        // Two more rounds than counted, for the compiler.
        for (int round = -2; round < rounds; round++) {
            long sum = 0;
            long started = System.nanoTime();
            for (long id : asked) {
                sum += owners.get(id);
            }
            double get = (double) (System.nanoTime() - started) / gets;
            started = System.nanoTime();
            for (int i = 0; i < gets; i++) {
                owners.put(asked[i], (short) (2 + (sum + i) % 999));
            }
            double move = (double) (System.nanoTime() - started) / gets;
            if (round >= 0) {
                System.out.println(get + " " + move + " " + bytes);
            }
        }
    }
}
