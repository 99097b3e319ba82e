// SPDX-License-Identifier: Apache-2.0
//
// Admits requests to the critical section. A request enters when no older write to its bucket is in
// flight. Writes are checked too, since two inserts would take the same free slot. The bucket
// addresses of writes are kept in a queue, oldest first, and leave it when the memory port has
// accepted the write's last line. The clock is read on entry, so requests enter in the order of
// their time stamps.
//
// As printed, each address in the queue is compared. With `CounterBits`, a counter in LUT RAM
// stands for all addresses that hash to it, so the cost does not grow with the number of writes in
// flight. A request may then wait for a write of another bucket, but never passes one of its own.
// No request passes a counter that is not 0, so a counter never exceeds 1. It is stored as two
// bits, one flipped on entry and one on retirement; they differ while the write is in flight.
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
  input  logic        sweep_valid_i,
  output logic        sweep_ready_o,
  input  logic [BucketBits-1:0] sweep_bucket_i,

  output logic        valid_o,
  input  logic        ready_i,
  output op_t         op_o,

  input  logic        retire_i,   // the oldest write is done
  output logic        stall_o     // a request waits for an older write
);

  localparam int unsigned PlaceWidth = Writers > 1 ? $clog2(Writers) : 1;
  localparam int unsigned LevelWidth = $clog2(Writers + 1);
  localparam logic [PlaceWidth-1:0] Last = PlaceWidth'(Writers - 1);

  if (BucketBits < 1 || BucketBits > 32) begin : gen_check
    $error("concurrency_control: BucketBits must be 1 to 32");
  end

  localparam int unsigned TagWidth = CounterBits == 0 ? BucketBits : CounterBits;

  // The unit of conflict detection: the bucket itself, or its counter.
  function automatic logic [TagWidth-1:0] tag_of(logic [BucketBits-1:0] address);
    logic [TagWidth-1:0] folded = '0;
    for (int unsigned i = 0; i < BucketBits; i++) folded[i%TagWidth] ^= address[i];
    return folded;
  endfunction

  logic [TagWidth-1:0]   tag_q [Writers];
  logic [Writers-1:0]    is_pending_q;
  logic [PlaceWidth-1:0] oldest_q, next_q;
  logic [LevelWidth-1:0] level_q;
  logic [BucketBits-1:0] bucket;
  logic [TagWidth-1:0]   tag;
  logic has_key, has_bucket, is_write, is_clear, is_here, is_busy, is_ready, enter;

  assign bucket   = sweep_valid_i ? sweep_bucket_i : hash_i.primary[31-:BucketBits];
  assign tag      = tag_of(bucket);
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
    logic entered [2 ** CounterBits];
    logic retired [2 ** CounterBits];
    logic flipped_q [Writers];        // the bit that each entry wrote
    logic [CounterBits:0] cleared_q;  // counters cleared after reset
    assign is_ready = cleared_q[CounterBits];
    assign is_busy  = entered[tag] != retired[tag];
    always_ff @(posedge clk_i) begin
      if (!is_ready || (enter && is_write)) begin
        entered[is_ready ? tag : cleared_q[CounterBits-1:0]] <= is_ready && !entered[tag];
      end
      if (!is_ready || retire_i) begin
        retired[is_ready ? tag_q[oldest_q] : cleared_q[CounterBits-1:0]]
            <= is_ready && flipped_q[oldest_q];
      end
      if (enter && is_write) flipped_q[next_q] <= !entered[tag];
    end
    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) cleared_q <= '0;
      else if (!is_ready) cleared_q <= cleared_q + 1'b1;
    end
  end

  assign is_here  = (sweep_valid_i || (meta_valid_i && (hash_valid_i || !has_key))) && is_ready;
  assign is_clear = !has_bucket || (!is_busy && (!is_write || level_q != LevelWidth'(Writers)));
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
      if (sweep_valid_i) begin
        op_o.meta.kind         <= KindDelete;
        op_o.meta.request.klen <= '0;
        op_o.meta.drain        <= 1'b0;
        op_o.now               <= '0;
      end
      if (is_write) tag_q[next_q] <= tag;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid_o      <= 1'b0;
      is_pending_q <= '0;
      oldest_q     <= '0;
      next_q       <= '0;
      level_q      <= '0;
    end else begin
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
  // its counter) that entered and have not retired, independently of the queue's comparison. No
  // request for it enters while there is one.
  logic [BucketBits-1:0] f_address, f_address_q;
  logic [TagWidth-1:0]   f_tag;
  assign f_tag = tag_of(f_address);
  always_ff @(posedge clk_i) f_address_q <= f_address;
  always_comb if (f_started_q) assume (f_address == f_address_q);
  logic [LevelWidth-1:0] f_under_way_q, f_counted, f_pending;
  logic f_enters, f_retires;
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
      assert (!(enter && has_bucket && tag == f_tag && f_under_way_q != '0));
      assert (!(enter && has_bucket && bucket == f_address && f_under_way_q != '0));
      assert (is_ready || level_q == '0);
      // A waiting request waits for an older write or for the next stage.
      assert (!(is_here && !is_clear) || level_q != '0 || (CounterBits != 0 && tag != f_tag));
      assert (!is_here || enter || !is_clear || (valid_o && !ready_i));
    end
  end

  // The counter is 1 while there is such a write, and its bits agree with the pending flip.
  if (CounterBits != 0) begin : gen_f_count
    always_comb begin
      if (rst_ni) begin
        assert (f_counted <= LevelWidth'(1));
        assert (gen_count.cleared_q <= (CounterBits + 1)'(2 ** CounterBits));
        if ((CounterBits + 1)'(f_tag) < gen_count.cleared_q) begin
          assert ((gen_count.entered[f_tag] != gen_count.retired[f_tag]) == (f_counted != '0));
        end
        for (int unsigned i = 0; i < Writers; i++) begin
          if (is_pending_q[i] && tag_q[i] == f_tag) begin
            assert (gen_count.flipped_q[i] == gen_count.entered[f_tag]);
          end
        end
      end
    end
  end
`endif

endmodule
