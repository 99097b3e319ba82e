// SPDX-License-Identifier: Apache-2.0
//
// The entrance of the critical section. A request enters when no older write to its bucket is
// under way: every request is checked, writes too, since two inserts would take the same free
// slot. Addresses of writes wait in a queue, oldest first, and leave it when the memory port has
// accepted their last line. Entering also reads the clock, so that the order of entering is the
// order of time.

module concurrency_control
  import ht_pkg::*;
#(
  parameter int unsigned BucketBits = 10,
  parameter int unsigned Writers = 16
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

  logic [BucketBits-1:0] address_q [Writers];
  logic [Writers-1:0]    is_pending_q;
  logic [PlaceWidth-1:0] oldest_q, next_q;
  logic [LevelWidth-1:0] level_q;
  logic [BucketBits-1:0] bucket;
  logic [Writers-1:0]    is_same;
  logic has_key, is_write, is_clear, is_here, enter;

  assign bucket   = hash_i.primary[31-:BucketBits];
  assign has_key  = meta_i.request.klen != '0;
  assign is_write = meta_i.kind == KindSet || meta_i.kind == KindDelete;

  for (genvar i = 0; i < Writers; i++) begin : gen_compare
    assign is_same[i] = is_pending_q[i] && address_q[i] == bucket;
  end

  assign is_here  = meta_valid_i && (hash_valid_i || !has_key);
  assign is_clear = !has_key || (is_same == '0 && (!is_write || level_q != LevelWidth'(Writers)));
  assign stall_o  = is_here && !is_clear;
  assign enter    = is_here && is_clear && (!valid_o || ready_i);

  assign meta_ready_o = enter;
  assign hash_ready_o = enter && has_key;

  always_ff @(posedge clk_i) begin
    if (enter) begin
      op_o.meta   <= meta_i;
      op_o.bucket <= 32'(bucket);
      op_o.check  <= hash_i.check;
      op_o.now    <= now_i;
      if (is_write) address_q[next_q] <= bucket;
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
  // It begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // For an address of the solver's choice: writes of it that entered and did not retire, counted
  // apart from the queue's own compare. Nobody enters while there is one.
  logic [BucketBits-1:0] f_address, f_address_q;
  always_ff @(posedge clk_i) f_address_q <= f_address;
  always_comb if (f_started_q) assume (f_address == f_address_q);
  logic [LevelWidth-1:0] f_under_way_q, f_counted, f_pending;
  logic f_enters, f_retires;
  // The place so many behind the oldest.
  function automatic logic [PlaceWidth-1:0] f_after(logic [LevelWidth-1:0] count);
    logic [LevelWidth:0] place = (LevelWidth + 1)'(oldest_q) + (LevelWidth + 1)'(count);
    return PlaceWidth'(place >= (LevelWidth + 1)'(Writers)
                       ? place - (LevelWidth + 1)'(Writers) : place);
  endfunction

  assign f_enters  = enter && is_write && bucket == f_address;
  assign f_retires = retire_i && address_q[oldest_q] == f_address;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) f_under_way_q <= '0;
    else f_under_way_q <= f_under_way_q + LevelWidth'(f_enters) - LevelWidth'(f_retires);
  end

  always_comb begin
    f_counted = '0;
    f_pending = '0;
    for (int unsigned i = 0; i < Writers; i++) begin
      f_pending = f_pending + LevelWidth'(is_pending_q[i]);
      f_counted = f_counted + LevelWidth'(is_pending_q[i] && address_q[i] == f_address);
    end
    if (rst_ni) begin
      // Only what entered retires, and only requests with a key write.
      assume (!retire_i || level_q != '0);
      assume (!is_write || has_key);
      assert (level_q <= LevelWidth'(Writers));
      assert (oldest_q <= Last && next_q <= Last);
      assert (f_after(level_q) == next_q);
      for (int unsigned i = 0; i < Writers; i++) begin
        assert (is_pending_q[f_after(LevelWidth'(i))] == (LevelWidth'(i) < level_q));
      end
      assert (f_pending == level_q);
      assert (f_counted == f_under_way_q);
      assert (!(enter && has_key && bucket == f_address && f_under_way_q != '0));
      // Who is here and waits does so for an older write, or for the stage below.
      assert (!stall_o || level_q != '0);
      assert (!is_here || enter || stall_o || (valid_o && !ready_i));
    end
  end
`endif

endmodule
