// SPDX-License-Identifier: Apache-2.0
//
// Admits requests to the critical section. A request enters when no older write to its bucket is in
// flight, or when those have its own key: then it is forwarded, which means that it is decided by
// what the last of them left behind and not by memory. Writes are checked too, since two inserts
// would take the same free slot. The bucket addresses of writes are kept in a queue, oldest first,
// and leave it when the memory port has accepted the write's last line. The clock is read on entry,
// so requests enter in the order of their time stamps.
//
// Since a write enters behind another of its bucket only if it repeats its key, all that are under
// way in a bucket have one key. A request that repeats the key of the last write of its station
// therefore has the key of all writes that are under way in its bucket. Sweeps have none, so
// nothing is forwarded until they are done. What is forwarded thus follows a write of its station
// that is under way, never one from before a sweep of the same counter, whose value may be gone.
//
// As printed, each address in the queue is compared. With `CounterBits`, a counter in LUT RAM
// stands for all addresses that hash to it, so the cost does not grow with the number of writes in
// flight. A request may then wait for a write of another bucket, but never passes one of its own.
// A counter is stored as two, of entries and of retirements, which differ while a write is in
// flight; an entry notes what the second will be when it retires.
//
// A DELETE without a key sweeps a bucket: it clears the slots whose values were overwritten. It
// enters in front of the request that waits, and its clock stands at 0, so that nothing expires.

module concurrency_control
  import ht_pkg::*;
#(
  parameter int unsigned BucketBits = 10,
  parameter int unsigned Writers = 16,
  parameter int unsigned CounterBits = 0   // log2 of counters; 0: compare addresses
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [31:0] now_i,

  input  logic        meta_valid_i,
  output logic        meta_ready_o,
  input  meta_t       meta_i,
  input  logic        hash_valid_i,
  output logic        hash_ready_o,
  input  hash_t       hash_i,
  input  logic [5:0]  station_i,      // with the hash, as the next one
  input  logic        is_repeated_i,  // the key is that of the station's last write
  input  logic        sweep_valid_i,
  output logic        sweep_ready_o,
  input  logic [BucketBits-1:0] sweep_bucket_i,

  output logic        valid_o,
  input  logic        ready_i,
  output op_t         op_o,

  input  logic        retire_i,   // the oldest write is done
  output logic        is_idle_o,  // there is none
  output logic        stall_o     // a request waits for an older write
);

  localparam int unsigned PlaceWidth = Writers > 1 ? $clog2(Writers) : 1;
  localparam int unsigned LevelWidth = $clog2(Writers + 1);
  localparam logic [PlaceWidth-1:0] Last = PlaceWidth'(Writers - 1);

  if (BucketBits < 1 || BucketBits > 32) begin : gen_check
    $error("concurrency_control: BucketBits must be 1 to 32");
  end

  localparam int unsigned TagWidth = CounterBits == 0 ? BucketBits : CounterBits;

  logic [TagWidth-1:0]   tag_q [Writers];
  logic [Writers-1:0]    is_pending_q;
  logic [PlaceWidth-1:0] oldest_q, next_q;
  logic [LevelWidth-1:0] level_q;
  logic [BucketBits-1:0] bucket;
  logic [TagWidth-1:0]   tag;
  logic has_key, has_bucket, is_write, is_clear, is_here, is_busy, is_ready, enter;
  logic may_forward, is_sweeping_q;
  logic [PlaceWidth-1:0] sweep_q;    // the last sweep's

  assign bucket   = sweep_valid_i ? sweep_bucket_i : hash_i.primary[31-:BucketBits];
  // The unit of conflict detection: the bucket itself, or its counter.
  assign tag      = TagWidth'(folded(32'(bucket), TagWidth));
  assign has_key    = !sweep_valid_i && meta_i.request.klen != '0;
  assign is_write   = sweep_valid_i || meta_i.kind == KindSet || meta_i.kind == KindDelete;
  assign has_bucket = has_key || sweep_valid_i;

  if (CounterBits == 0) begin : gen_compare
    logic [Writers-1:0] is_same;
    for (genvar i = 0; i < Writers; i++) begin : gen_same
      assign is_same[i] = is_pending_q[i] && tag_q[i] == tag;
    end
    assign is_busy  = is_same != '0;
    assign is_ready = 1'b1;
  end else begin : gen_count
    logic [LevelWidth-1:0] entered [2 ** CounterBits];
    logic [LevelWidth-1:0] retired [2 ** CounterBits];
    logic [LevelWidth-1:0] noted_q [Writers];   // the entries so far, with each
    logic [CounterBits:0] cleared_q;  // counters cleared after reset
    assign is_ready = cleared_q[CounterBits];
    assign is_busy  = entered[tag] != retired[tag];
    always_ff @(posedge clk_i) begin
      if (!is_ready || (enter && is_write)) begin
        entered[is_ready ? tag : cleared_q[CounterBits-1:0]]
            <= is_ready ? entered[tag] + 1'b1 : '0;
      end
      if (!is_ready || retire_i) begin
        retired[is_ready ? tag_q[oldest_q] : cleared_q[CounterBits-1:0]]
            <= is_ready ? noted_q[oldest_q] : '0;
      end
      if (enter && is_write) noted_q[next_q] <= entered[tag] + 1'b1;
    end
    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) cleared_q <= '0;
      else if (!is_ready) cleared_q <= cleared_q + 1'b1;
    end
  end

  assign is_here  = (sweep_valid_i || (meta_valid_i && (hash_valid_i || !has_key))) && is_ready;
  assign may_forward = has_key && is_repeated_i && !is_sweeping_q;
  assign is_clear = !has_bucket || ((!is_busy || may_forward)
                                    && (!is_write || level_q != LevelWidth'(Writers)));
  assign is_idle_o = level_q == '0;
  assign stall_o  = is_here && !is_clear && !sweep_valid_i;
  assign enter    = is_here && is_clear && (!valid_o || ready_i);

  assign meta_ready_o  = enter && !sweep_valid_i;
  assign hash_ready_o  = enter && has_key;
  assign sweep_ready_o = enter && sweep_valid_i;

  always_ff @(posedge clk_i) begin
    if (enter) begin
      op_o.meta   <= meta_i;
      op_o.bucket <= 32'(bucket);
      op_o.check  <= hash_i.check;
      op_o.now    <= now_i;
      op_o.station      <= station_i;
      op_o.is_forwarded <= may_forward && is_busy;
      if (sweep_valid_i) begin
        op_o.meta.kind         <= KindDelete;
        op_o.meta.request.klen <= '0;
        op_o.meta.drain        <= 1'b0;
        op_o.now               <= '0;
      end
      if (is_write) tag_q[next_q] <= tag;
      if (sweep_valid_i) sweep_q <= next_q;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid_o      <= 1'b0;
      is_pending_q <= '0;
      oldest_q     <= '0;
      next_q       <= '0;
      level_q      <= '0;
      is_sweeping_q <= 1'b0;
    end else begin
      if (enter && sweep_valid_i) is_sweeping_q <= 1'b1;
      else if (retire_i && oldest_q == sweep_q) is_sweeping_q <= 1'b0;
      valid_o <= enter || (valid_o && !ready_i);
      if (retire_i) begin
        is_pending_q[oldest_q] <= 1'b0;
        oldest_q               <= oldest_q == Last ? '0 : oldest_q + 1'b1;
      end
      if (enter && is_write) begin
        is_pending_q[next_q] <= 1'b1;
        next_q               <= next_q == Last ? '0 : next_q + 1'b1;
      end
      if (enter && is_write && !retire_i) level_q <= level_q + 1'b1;
      if (retire_i && !(enter && is_write)) level_q <= level_q - 1'b1;
    end
  end

`ifdef FORMAL
  // The proof begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // For an address chosen by the solver, count the writes to it (or to any address that hashes to
  // its counter) that entered and have not retired, independently of the queue's comparison. While
  // there is one, no request for it enters except one that repeats the key, and that is forwarded;
  // and none at all while there is a sweep.
  logic [BucketBits-1:0] f_address, f_address_q;
  logic [TagWidth-1:0]   f_tag;
  assign f_tag = TagWidth'(folded(32'(f_address), TagWidth));
  always_ff @(posedge clk_i) f_address_q <= f_address;
  always_comb if (f_started_q) assume (f_address == f_address_q);
  logic [LevelWidth-1:0] f_under_way_q, f_counted, f_pending;
  logic f_enters, f_retires, f_is_swept, f_is_written, f_has_sweep, f_is_last_known;
  logic [Writers-1:0] f_sweeps_q;    // entries of sweeps
  // The index `count` entries behind the oldest.
  function automatic logic [PlaceWidth-1:0] f_after(logic [LevelWidth-1:0] count);
    logic [LevelWidth:0] place = (LevelWidth + 1)'(oldest_q) + (LevelWidth + 1)'(count);
    return PlaceWidth'(place >= (LevelWidth + 1)'(Writers)
                       ? place - (LevelWidth + 1)'(Writers) : place);
  endfunction

  assign f_enters  = enter && is_write && tag == f_tag;
  assign f_retires = retire_i && tag_q[oldest_q] == f_tag;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) f_under_way_q <= '0;
    else f_under_way_q <= f_under_way_q + LevelWidth'(f_enters) - LevelWidth'(f_retires);
  end
  always_ff @(posedge clk_i) if (enter && is_write) f_sweeps_q[next_q] <= sweep_valid_i;

  // Sweeps that are under way, of which none is younger than the one that is known.
  always_comb begin
    f_is_swept      = 1'b0;
    f_is_written    = 1'b0;
    f_has_sweep     = 1'b0;
    f_is_last_known = 1'b0;
    for (int unsigned i = 0; i < Writers; i++) begin
      if (LevelWidth'(i) < level_q && f_sweeps_q[f_after(LevelWidth'(i))]) begin
        f_has_sweep     = 1'b1;
        f_is_last_known = f_after(LevelWidth'(i)) == sweep_q;
        if (tag_q[f_after(LevelWidth'(i))] == f_tag) f_is_swept = 1'b1;
      end else if (LevelWidth'(i) < level_q && tag_q[f_after(LevelWidth'(i))] == f_tag) begin
        f_is_written = 1'b1;
      end
    end
  end

  always_comb begin
    f_counted = '0;
    f_pending = '0;
    for (int unsigned i = 0; i < Writers; i++) begin
      f_pending = f_pending + LevelWidth'(is_pending_q[i]);
      f_counted = f_counted + LevelWidth'(is_pending_q[i] && tag_q[i] == f_tag);
    end
    if (rst_ni) begin
      // Only what entered retires, and only sweeps and requests with a key write.
      assume (!retire_i || level_q != '0);
      assume (!is_write || has_bucket);
      assert (level_q <= LevelWidth'(Writers));
      assert (oldest_q <= Last && next_q <= Last);
      assert (f_after(level_q) == next_q);
      for (int unsigned i = 0; i < Writers; i++) begin
        assert (is_pending_q[f_after(LevelWidth'(i))] == (LevelWidth'(i) < level_q));
      end
      assert (f_pending == level_q);
      assert (f_counted == f_under_way_q);
      assert (!has_bucket || bucket != f_address || tag == f_tag);
      if (enter && has_bucket && tag == f_tag) begin
        assert ((may_forward && is_busy) == (f_under_way_q != '0));
        if (f_under_way_q != '0) begin
          assert (has_key && is_repeated_i && !f_is_swept && f_is_written);
        end
      end
      assert (f_has_sweep == is_sweeping_q && f_has_sweep == f_is_last_known);
      assert (is_ready || level_q == '0);
      // A waiting request waits for an older write or for the next stage.
      assert (!(is_here && !is_clear) || level_q != '0 || (CounterBits != 0 && tag != f_tag));
      assert (!is_here || enter || !is_clear || (valid_o && !ready_i));
    end
  end

  // The counters differ by the number of such writes, each of which noted its own place.
  if (CounterBits != 0) begin : gen_f_count
    logic [LevelWidth-1:0] f_noted;
    always_comb begin
      f_noted = gen_count.retired[f_tag];
      if (rst_ni) begin
        assert (gen_count.cleared_q <= (CounterBits + 1)'(2 ** CounterBits));
        if ((CounterBits + 1)'(f_tag) < gen_count.cleared_q) begin
          assert (gen_count.entered[f_tag] - gen_count.retired[f_tag] == f_counted);
        end
        for (int unsigned i = 0; i < Writers; i++) begin
          if (LevelWidth'(i) < level_q && tag_q[f_after(LevelWidth'(i))] == f_tag) begin
            f_noted = f_noted + 1'b1;
            assert (gen_count.noted_q[f_after(LevelWidth'(i))] == f_noted);
          end
        end
      end
    end
  end
`endif

endmodule
