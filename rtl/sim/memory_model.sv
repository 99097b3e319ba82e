// SPDX-License-Identifier: Apache-2.0
//
// Models a memory behind the port with the timing of a DRAM as its client observes it: latency, the
// cycles of a burst, the turnaround between reads and writes, the time between two rows of a bank,
// refresh, and random delays. An access takes effect when it is accepted. Accesses
// are carried out in order: one that waits for its bank holds up all behind it.

module memory_model
  import ht_pkg::*;
#(
  parameter int unsigned BeatWords = 8,
  parameter int unsigned Beats = 4096,
  parameter int unsigned Outstanding = 256,   // read beats in flight, at most
  parameter int unsigned BurstBeats = 1,      // beats of a burst
  parameter int unsigned RowBeats = 4,        // beats of a row; the next row is in another bank
  localparam int unsigned Banks = 8,
  localparam int unsigned BeatWidth = 64 * BeatWords
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic [15:0]             latency_i,     // cycles from a read to its first beat
  input  logic [7:0]              burst_i,       // minimum cycles between two bursts
  input  logic [7:0]              part_i,        // 48ths of a cycle added to `burst_i`
  input  logic                    merge_i,       // what lies in the burst before it costs a beat
  input  logic [7:0]              row_cycle_i,   // from row to row of a bank
  input  logic [7:0]              turn_i,        // extra cycles when the direction changes
  input  logic [15:0]             refresh_every_i,
  input  logic [7:0]              refresh_i,     // cycles of a refresh
  input  logic [7:0]              jitter_i,      // mask of random cycles on top of the latency
  input  logic [7:0]              stall_i,       // of 256 cycles, those in which nothing is taken

  input  logic                    valid_i,
  output logic                    ready_o,
  input  memory_access_t          access_i,
  input  logic [BeatWidth-1:0]    data_i,
  input  logic [BeatWords-1:0]    mask_i,
  output logic                    return_valid_o,
  output logic                    return_is_value_o,
  output logic [BeatWidth-1:0]    return_o,
  output logic                    is_busy_o,     // with an access, a turn, a refresh or a wait

  input  logic [31:0]             peek_address_i,   // in words, without timing
  output logic [63:0]             peek_o,
  input  logic                    poke_i,
  input  logic [63:0]             poke_data_i
);

  localparam int unsigned IndexWidth = $clog2(Beats);
  localparam int unsigned QueueWidth = $clog2(Outstanding);

  logic [BeatWidth-1:0] store [Beats];

  // Beats in flight.
  logic [BeatWidth-1:0] queue_data  [2 ** QueueWidth];
  logic [31:0]          queue_due   [2 ** QueueWidth];
  logic                 queue_value [2 ** QueueWidth];
  logic [QueueWidth:0]  head_q, tail_q;

  logic [31:0] time_q, random_q, due_q;
  logic [15:0] refresh_q;
  logic [7:0]  busy_q, beats_q;
  logic [4:0] fetch_q;                  // beats of the current read still to be fetched
  logic [IndexWidth-1:0] fetch_address_q;
  logic is_value_q, was_write_q, is_inside_q;
  logic [IndexWidth-1:0] index, peek_index;
  logic [7:0] cycles, turn, burst, part_q;
  logic [IndexWidth-1:0] last_q;        // end of the last access
  logic is_refresh_due_q, is_merged, is_row_open, is_row_ready, is_carry;
  logic [31:0] row_q [Banks];           // open in each bank
  logic [31:0] opened_q [Banks];        // and when it was opened
  logic [31:0] row;
  logic [2:0]  bank;

  assign index      = access_i.address[IndexWidth-1:0];
  assign peek_index = IndexWidth'(peek_address_i / BeatWords);
  assign peek_o     = store[peek_index][64*(peek_address_i%BeatWords)+:64];
  assign ready_o    = busy_q == '0 && fetch_q == '0 && random_q[7:0] >= stall_i && is_row_ready
                      && (!is_refresh_due_q || is_inside_q);
  assign is_busy_o  = busy_q != '0 || fetch_q != '0 || valid_i;
  assign turn       = was_write_q != access_i.write && !is_inside_q ? turn_i : '0;
  assign is_merged  = merge_i && was_write_q == access_i.write && !is_inside_q && index != last_q
                      && 32'(index) / BurstBeats == 32'(last_q) / BurstBeats;
  // The unused fraction of a cycle is carried over to the next burst.
  assign is_carry   = part_q + part_i >= 8'd48;
  assign burst      = is_merged ? '0 : burst_i + 8'(is_carry);
  assign cycles     = beats_q + 8'd1 >= burst ? '0 : burst - beats_q - 8'd1;

  assign row          = 32'(index) / RowBeats;
  assign bank         = row[2:0];
  assign is_row_open  = row_q[bank] == row;
  assign is_row_ready = row_cycle_i == '0 || is_row_open || is_inside_q
                        || time_q - opened_q[bank] >= 32'(row_cycle_i);

  assign return_valid_o    = head_q != tail_q && time_q - queue_due[head_q[QueueWidth-1:0]] < 2**31;
  assign return_is_value_o = queue_value[head_q[QueueWidth-1:0]];
  assign return_o          = queue_data[head_q[QueueWidth-1:0]];

  logic is_fetching;
  logic [IndexWidth-1:0] fetch_address;
  assign is_fetching   = fetch_q != '0 || (valid_i && ready_o && !access_i.write);
  assign fetch_address = fetch_q != '0 ? fetch_address_q : index;

  always_ff @(posedge clk_i) begin
    if (poke_i) store[peek_index][64*(peek_address_i%BeatWords)+:64] <= poke_data_i;
    if (valid_i && ready_o && access_i.write) begin
      for (int unsigned i = 0; i < BeatWords; i++) begin
        if (mask_i[i]) store[index][64*i+:64] <= data_i[64*i+:64];
      end
    end
    if (is_fetching) begin
      queue_data[tail_q[QueueWidth-1:0]]  <= store[fetch_address];
      queue_value[tail_q[QueueWidth-1:0]] <= fetch_q != '0 ? is_value_q : access_i.is_value;
      queue_due[tail_q[QueueWidth-1:0]]   <= fetch_q != '0 ? due_q
          : time_q + 32'(latency_i) + 32'(turn) + 32'({random_q[15:8] & jitter_i});
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      head_q          <= '0;
      tail_q          <= '0;
      time_q          <= '0;
      random_q        <= 32'h1234_5678;
      due_q           <= '0;
      refresh_q       <= '0;
      busy_q          <= '0;
      beats_q         <= '0;
      fetch_q         <= '0;
      fetch_address_q <= '0;
      is_value_q      <= 1'b0;
      was_write_q     <= 1'b0;
      is_inside_q     <= 1'b0;
      part_q          <= '0;
      last_q          <= '0;
      is_refresh_due_q <= 1'b0;
      for (int unsigned i = 0; i < Banks; i++) begin
        row_q[i]    <= '1;
        opened_q[i] <= '0;
      end
    end else begin
      time_q    <= time_q + 1'b1;
      random_q  <= {random_q[30:0], random_q[31] ^ random_q[21] ^ random_q[1] ^ random_q[0]};
      refresh_q <= refresh_q == '0 ? refresh_every_i : refresh_q - 1'b1;
      if (refresh_q == '0 && refresh_every_i != '0) is_refresh_due_q <= 1'b1;
      if (busy_q != '0) busy_q <= busy_q - 1'b1;
      if (is_fetching) tail_q <= tail_q + 1'b1;
      if (return_valid_o) head_q <= head_q + 1'b1;
      if (fetch_q != '0) begin
        fetch_q         <= fetch_q - 1'b1;
        fetch_address_q <= fetch_address_q + 1'b1;
      end
      if (valid_i && ready_o) begin
        was_write_q <= access_i.write;
        last_q      <= index;
        if (!is_row_open) begin
          row_q[bank]    <= row;
          opened_q[bank] <= time_q;
        end
        if (!is_merged && access_i.last) part_q <= part_q + part_i - (is_carry ? 8'd48 : '0);
        if (access_i.write) begin
          is_inside_q <= !access_i.last;
          beats_q     <= access_i.last ? '0 : beats_q + 1'b1;
          if (access_i.last) busy_q <= cycles + turn;
        end else begin
          fetch_q         <= access_i.count - 1'b1;
          fetch_address_q <= index + 1'b1;
          is_value_q      <= access_i.is_value;
          due_q           <= time_q + 32'(latency_i) + 32'(turn)
                             + 32'({random_q[15:8] & jitter_i});
          busy_q          <= (burst == '0 ? '0 : burst - 1'b1) + turn;
        end
      end else if (is_refresh_due_q && !is_inside_q && busy_q == '0) begin
        busy_q           <= refresh_i;
        is_refresh_due_q <= 1'b0;
      end
    end
  end

endmodule
