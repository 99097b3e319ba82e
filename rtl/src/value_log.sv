// SPDX-License-Identifier: Apache-2.0
//
// Allocates the memory of values: a ring of 2^LogBits beats, in which every value lies behind the
// one before. A value's pointer is its position: 1, and a beat further for each beat that was
// appended before it since the reset. So a pointer tells how old its value is, and whether a later
// one lies where it was: nothing has to be freed, sizes need no classes, and when memory is full
// the oldest value goes.
//
// Requests are decided one by one and the value store works in their order. A value that is whole
// when its read is decided is therefore read before anything that is appended later is written, and
// no distance has to be kept between head and reads.
//
// Positions begin again after 2^PositionBits beats. Before one could be taken for a later one, its
// slot is cleared: while half of all positions are appended, every bucket is swept once, which
// clears what was overwritten.

module value_log #(
  parameter int unsigned Slots = 8,
  parameter int unsigned BucketBits = 10,
  parameter int unsigned PositionBits = 48,
  parameter int unsigned LogBits = 16,
  parameter int unsigned Largest = 11,     // beats of the largest value
  localparam int unsigned CountWidth = $clog2(Largest + 1)
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   append_i,
  input  logic [CountWidth-1:0]  beats_i,        // that are appended
  output logic [47:0]            head_o,         // the position of the next value

  // For the verdict on a bucket: what became of the value of each slot.
  input  logic [Slots-1:0][47:0] pointers_i,
  output logic [Slots-1:0]       is_overwritten_o,
  output logic [Slots-1:0]       is_young_o,     // it lies in the later half

  output logic                   sweep_valid_o,  // a bucket is to be swept
  output logic [BucketBits-1:0]  sweep_bucket_o,
  input  logic                   sweep_taken_i
);

  // Beats that are appended from sweep to sweep, as a logarithm.
  localparam int unsigned SweepBits = PositionBits - 1 - BucketBits;

  if (PositionBits > 48 || PositionBits < BucketBits + 1 + CountWidth
      || PositionBits < LogBits + 2) begin : gen_position_check
    $error("value_log: PositionBits must be at most 48, and enough for the log and the buckets");
  end
  if (LogBits < 1 || LogBits > 30 || 2 ** (LogBits - 1) < Largest) begin : gen_check
    $error("value_log: LogBits must be at most 30, and half of the log hold the largest value");
  end

  logic [PositionBits-1:0] head_q;
  for (genvar i = 0; i < Slots; i++) begin : gen_slot
    logic [PositionBits-1:0] age;
    assign age                 = head_q - pointers_i[i][PositionBits-1:0];
    assign is_overwritten_o[i] = age[PositionBits-1:LogBits] != '0;
    assign is_young_o[i]       = age[PositionBits-1:LogBits-1] == '0;
  end
  assign head_o = 48'(head_q);

  // The bucket to be swept next follows the head.
  assign sweep_valid_o = sweep_bucket_o != head_q[SweepBits+:BucketBits];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      head_q         <= PositionBits'(1);
      sweep_bucket_o <= '0;
    end else begin
      if (append_i) head_q <= head_q + PositionBits'(beats_i);
      if (sweep_taken_i) sweep_bucket_o <= sweep_bucket_o + 1'b1;
    end
  end

`ifdef FORMAL
  // The proof begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // The solver chooses a beat of the ring and a moment at which a value is appended over it. As
  // long as the value counts as whole, no later one was appended over that beat.
  logic [LogBits-1:0]    f_place, f_place_q;
  logic [CountWidth-1:0] f_distance;       // from the head to the place
  logic                  f_is_over, f_is_chosen, f_is_kept_q, f_is_lost_q;
  logic [47:0]           f_position_q, f_age;
  logic [LogBits-1:0]    f_ahead;
  always_ff @(posedge clk_i) f_place_q <= f_place;
  always_comb if (f_started_q) assume (f_place == f_place_q);
  assign f_ahead    = f_place - head_o[LogBits-1:0];
  assign f_is_over  = append_i && 48'(f_ahead) < 48'(beats_i);
  assign f_age      = head_o - f_position_q;
  assign f_distance = CountWidth'(f_place - f_position_q[LogBits-1:0]);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      f_is_kept_q <= 1'b0;
      f_is_lost_q <= 1'b0;
    end else begin
      if (f_is_over && f_is_chosen && !f_is_kept_q) begin
        f_is_kept_q  <= 1'b1;
        f_position_q <= head_o;
      end else if (f_is_over && f_is_kept_q) f_is_lost_q <= 1'b1;
    end
  end

  always_comb begin
    assume (32'(beats_i) <= Largest);
    // Sweeps clear what would meet its own position again.
    assume (!head_q[PositionBits-1]);
    if (rst_ni && f_is_kept_q && pointers_i[0] == f_position_q) begin
      assert (!f_is_lost_q || is_overwritten_o[0]);
      assert (!is_young_o[0] || !is_overwritten_o[0]);
    end
    // Invariants that the induction needs.
    if (rst_ni && f_is_kept_q) begin
      assert (f_position_q <= head_o && f_age != '0);
      assert (LogBits'(f_distance) == f_place - f_position_q[LogBits-1:0]);
      assert (32'(f_distance) < Largest && 48'(f_distance) < f_age);
      assert (!f_is_lost_q || f_age > 48'(2 ** LogBits));
      assert (f_is_lost_q || f_age <= 48'(2 ** LogBits) + 48'(f_distance));
    end
    assert (!f_is_lost_q || f_is_kept_q);
  end
`endif

endmodule
