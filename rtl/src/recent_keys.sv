// SPDX-License-Identifier: Apache-2.0
//
// Tells whether a request is for the same key as the last write that came to its station. A station
// stands for all buckets whose conflicts are counted together, and for others; it keeps the key of
// its last write. Of a request that repeats it, the critical section knows that any write of the
// same bucket that is under way has this very key.
//
// Keys are compared whole, beat by beat, with what a block RAM holds; their lengths too, since the
// last beat is filled up with zeros. Most requests wait for none of this: where no write has come
// since the critical section was last empty, and where the length differs, the answer is known at
// once, and otherwise with the first beat that differs.

module recent_keys
  import ht_pkg::*;
#(
  parameter int unsigned KeyBytes = 16,
  parameter int unsigned BucketBits = 10,
  parameter int unsigned CounterBits = 0,   // as in the concurrency control
  parameter int unsigned StationBits = 4,
  parameter int unsigned Beats = 256        // of keys whose hash is not known yet
) (
  input  logic       clk_i,
  input  logic       rst_ni,
  input  logic       key_valid_i,
  output logic       key_ready_o,
  input  key_beat_t  key_i,

  input  logic       request_valid_i,  // the next request, which has a key
  input  logic       is_write_i,
  input  logic [7:0] klen_i,
  input  logic       hash_valid_i,
  output logic       hash_ready_o,
  input  hash_t      hash_i,

  input  logic       is_idle_i,        // no write is in the critical section
  output logic       valid_o,
  input  logic       ready_i,
  output hash_t      hash_o,
  output logic [5:0] station_o,
  output logic       is_repeated_o
);

  localparam int unsigned TagWidth = CounterBits == 0 ? BucketBits : CounterBits;
  localparam int unsigned KeyBeats = (KeyBytes + 7) / 8;
  localparam int unsigned PlaceWidth = KeyBeats > 1 ? $clog2(KeyBeats) : 1;
  localparam int unsigned Parts = 16;   // of a beat, compared by themselves

  if (StationBits < 1 || StationBits > 6 || StationBits > TagWidth) begin : gen_check
    $error("recent_keys: StationBits must be 1 to 6, and at most those of a bucket or a counter");
  end

  logic        beat_valid, beat_last, pop, take, is_told;
  logic [63:0] beat;
  fifo #(.Width(65), .Depth(Beats), .InBlock(1'b1)) u_beats (
    .clk_i, .rst_ni, .valid_i(key_valid_i), .ready_o(key_ready_o),
    .data_i({key_i.last, key_i.data}),
    .valid_o(beat_valid), .ready_i(pop), .data_o({beat_last, beat}), .level_o()
  );

  // The key whose beats are taken, and what is known of it.
  logic [StationBits-1:0]   station, station_q;
  logic [2**StationBits-1:0] is_open_q;   // a write has come to the station
  logic [7:0]               klens [2 ** StationBits];
  logic                     is_alike, is_alike_q, is_write_q, is_draining_q, is_decided_q;
  logic [PlaceWidth-1:0]    place_q;      // of the next beat in the key

  assign station  = StationBits'(folded(hash_i.primary >> (32 - BucketBits), TagWidth));
  assign is_alike = is_open_q[station] && klens[station] == klen_i;
  // Behind a write a cycle passes, so that its last beat can be read.
  assign take = request_valid_i && hash_valid_i && is_decided_q && !valid_o
                && (!is_draining_q || (pop && beat_last && !is_write_q));
  assign hash_ready_o = take;
  assign pop = is_draining_q && beat_valid;

  // A beat and what the station has in its place, a cycle later; then whether they differ.
  logic [63:0] stored [2 ** (StationBits + PlaceWidth)];
  logic [63:0] stored_q, beat_q;
  logic [StationBits+PlaceWidth-1:0] address_q;
  logic        is_kept_q, is_asked_q, is_last_q, has_verdict_q, is_end_q;
  logic [Parts-1:0] differs_q;
  assign is_told = has_verdict_q && !is_decided_q && (differs_q != '0 || is_end_q);

  always_ff @(posedge clk_i) begin
    stored_q  <= stored[{station_q, place_q}];
    beat_q    <= beat;
    address_q <= {station_q, place_q};
    is_last_q <= beat_last;
    is_end_q  <= is_last_q;
    for (int unsigned i = 0; i < Parts; i++) begin
      differs_q[i] <= stored_q[64/Parts*i+:64/Parts] != beat_q[64/Parts*i+:64/Parts];
    end
    if (is_kept_q) stored[address_q] <= beat_q;
    if (take) begin
      hash_o     <= hash_i;
      station_q  <= station;
      is_write_q <= is_write_i;
      is_alike_q <= is_alike;
      if (is_write_i) klens[station] <= klen_i;
    end
    if (take) is_repeated_o <= 1'b0;
    else if (is_told) is_repeated_o <= differs_q == '0;
  end
  assign station_o = 6'(station_q);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      is_open_q     <= '0;
      is_draining_q <= 1'b0;
      is_decided_q  <= 1'b1;
      is_kept_q     <= 1'b0;
      is_asked_q    <= 1'b0;
      has_verdict_q <= 1'b0;
      valid_o       <= 1'b0;
      place_q       <= '0;
    end else begin
      is_kept_q     <= pop && is_write_q;
      is_asked_q    <= pop && is_alike_q && !is_decided_q && !is_told;
      has_verdict_q <= is_asked_q && !is_decided_q && !is_told;
      if (pop) place_q <= beat_last ? '0 : place_q + 1'b1;
      is_draining_q <= take || (is_draining_q && !(pop && beat_last));
      if (take) is_decided_q <= !is_alike;
      else if (is_told) is_decided_q <= 1'b1;
      valid_o <= (take && !is_alike) || is_told || (valid_o && !ready_i);
      if (take && is_write_i) is_open_q[station] <= 1'b1;
      else if (is_idle_i && is_decided_q && !valid_o && !take) is_open_q <= '0;
    end
  end

endmodule
