// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes values in the order of the commands. 8 bytes of header, the flags in the lower
// half, are followed by the value; behind the last beat of the log comes its first. One beat of
// memory is one access, since a beat takes longer to cross the 8-byte bus than the memory takes for
// it.

module value_store
  import ht_pkg::*;
#(
  parameter int unsigned BeatWords = 8,
  parameter int unsigned LogBits = 16,
  parameter int unsigned ReturnBeats = 32,
  parameter int unsigned Reads = 64,
  parameter int unsigned AddressWidth = 32,
  localparam int unsigned BeatWidth = 64 * BeatWords
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  input  logic                    command_valid_i,
  output logic                    command_ready_o,
  input  value_command_t          command_i,
  input  logic                    val_valid_i,   // from the packet buffer
  output logic                    val_ready_o,
  input  logic [63:0]             val_i,

  output logic                    access_valid_o,
  input  logic                    access_ready_i,
  output logic                    access_write_o,
  output logic [AddressWidth-1:0] access_address_o,
  output logic [BeatWidth-1:0]    access_data_o,
  output logic [BeatWords-1:0]    access_mask_o,
  input  logic                    return_valid_i,  // has a credit, so always taken
  input  logic [BeatWidth-1:0]    return_i,

  output logic                    flags_valid_o,
  input  logic                    flags_ready_i,
  output logic [31:0]             flags_o,
  output logic                    val_valid_o,
  input  logic                    val_ready_i,
  output beat_t                   val_o
);

  localparam int unsigned WordWidth = $clog2(BeatWords);
  localparam logic [WordWidth-1:0] LastWord = WordWidth'(BeatWords - 1);

  if (BeatWords < 2) begin : gen_check
    $error("value_store: a beat of memory must have at least 2 words");
  end

  // Words of a value, its header included.
  function automatic logic [21:0] words_of(logic [23:0] vlen);
    return 22'((25'(vlen) + 25'd15) >> 3);
  endfunction

  // Memory accesses of the current command.
  logic [21:0] word_q;   // words of the command done so far
  logic [LogBits-1:0] beat_q, place;
  logic [WordWidth-1:0] place_q;
  logic [BeatWords-1:0][63:0] data_q;
  logic [BeatWords-1:0]       mask_q;
  logic is_full_q, is_last_q, has_credit, read_task_ready, is_last_word, is_last_read;
  logic is_read, is_write, is_drain, is_packing, take_word, is_header;
  logic is_empty;
  logic [21:0] words, next_word;
  logic [WordWidth-1:0] fill;      // the place of the value's word

  assign words        = words_of(command_i.vlen);
  assign is_read      = command_valid_i && command_i.kind == ValueRead;
  assign is_write     = command_valid_i && command_i.kind == ValueWrite;
  assign is_drain     = command_valid_i && command_i.kind == ValueDrain;
  assign is_header    = word_q == '0;
  assign is_last_read = word_q + 22'(BeatWords) >= words;

  // A write gathers a beat word by word, also while the one before is accepted, and the value's
  // first word together with the header; a drained value has no header.
  assign is_packing = is_write && (!is_full_q || (access_ready_i && !is_last_q));
  assign is_empty   = words == 22'd1;
  assign take_word  = is_packing && (is_empty || val_valid_i);
  assign val_ready_o = (is_packing && !is_empty) || (is_drain && !is_header);
  assign next_word  = is_header && !is_empty ? 22'd2 : word_q + 1'b1;
  assign is_last_word = next_word == words;
  assign fill       = is_header && !is_empty ? WordWidth'(1) : place_q;

  assign access_valid_o   = is_full_q || (is_read && has_credit && read_task_ready);
  assign access_write_o   = is_full_q;
  assign place            = command_i.pointer[LogBits-1:0] + beat_q;
  assign access_address_o = AddressWidth'(place);
  assign access_data_o    = data_q;
  assign access_mask_o    = mask_q;

  always_comb begin
    command_ready_o = 1'b0;
    if (is_full_q) command_ready_o = access_ready_i && is_last_q;
    else if (is_read) command_ready_o = access_valid_o && access_ready_i && is_last_read;
    else if (is_drain)
      command_ready_o = words == 22'd1 || (!is_header && val_valid_i && is_last_word);
  end

  always_ff @(posedge clk_i) begin
    if (take_word && !is_empty) data_q[fill] <= val_i;
    if (take_word && is_header) data_q[0]    <= {32'b0, command_i.flags};
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      word_q    <= '0;
      beat_q    <= '0;
      place_q   <= '0;
      mask_q    <= '0;
      is_full_q <= 1'b0;
      is_last_q <= 1'b0;
    end else begin
      if (access_valid_o && access_ready_i) begin
        beat_q    <= beat_q + 1'b1;
        is_full_q <= 1'b0;
        mask_q    <= '0;
        if (is_read) word_q <= word_q + 22'(BeatWords);
      end
      if (take_word) begin
        word_q       <= next_word;
        place_q      <= fill == LastWord ? '0 : fill + 1'b1;
        mask_q[fill] <= 1'b1;
        if (is_header) mask_q[0] <= 1'b1;
        is_full_q    <= fill == LastWord || is_last_word;
        is_last_q    <= is_last_word;
      end
      if (is_drain && (is_header || val_valid_i)) word_q <= word_q + 1'b1;
      if (command_ready_o && command_valid_i) begin
        word_q  <= '0;
        beat_q  <= '0;
        place_q <= '0;
      end
    end
  end

  // Data returned by reads.
  logic beat_valid, beat_taken, read_valid, read_done, out_last, out_header;
  logic [BeatWords-1:0][63:0] beat;
  logic [23:0] read_vlen;
  logic [21:0] out_word_q;
  logic [WordWidth-1:0] out_place_q;
  logic [2:0] tail;

  credits #(.Total(ReturnBeats), .Step(1)) u_credits (
    .clk_i, .rst_ni, .take_i(access_valid_o && access_ready_i && !access_write_o),
    .give_back_i(beat_taken), .is_enough_o(has_credit)
  );

  fifo #(.Width(24), .Depth(Reads)) u_reads (
    .clk_i, .rst_ni,
    .valid_i(is_read && is_header && access_valid_o && access_ready_i),
    .ready_o(read_task_ready), .data_i(command_i.vlen),
    .valid_o(read_valid), .ready_i(read_done), .data_o(read_vlen), .level_o()
  );
  fifo #(.Width(BeatWidth), .Depth(ReturnBeats)) u_returns (
    .clk_i, .rst_ni, .valid_i(return_valid_i), .ready_o(), .data_i(return_i),
    .valid_o(beat_valid), .ready_i(beat_taken), .data_o(beat), .level_o()
  );

  logic take_out;
  assign out_header    = out_word_q == '0;
  assign out_last      = out_word_q == words_of(read_vlen) - 1'b1;
  assign flags_valid_o = read_valid && beat_valid && out_header;
  assign flags_o       = beat[0][31:0];
  assign val_valid_o   = read_valid && beat_valid && !out_header;
  assign val_o.data    = beat[out_place_q];
  assign val_o.last    = out_last;
  assign tail          = read_vlen[2:0];
  assign val_o.keep    = out_last && tail != '0 ? ~(8'hff << tail) : 8'hff;
  assign take_out      = out_header ? flags_valid_o && flags_ready_i : val_valid_o && val_ready_i;
  assign read_done     = take_out && out_last;
  assign beat_taken    = take_out && (out_last || out_place_q == LastWord);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      out_word_q  <= '0;
      out_place_q <= '0;
    end else if (take_out) begin
      out_word_q  <= out_last ? '0 : out_word_q + 1'b1;
      out_place_q <= beat_taken ? '0 : out_place_q + 1'b1;
    end
  end

`ifdef FORMAL
  // The proof begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // Returned data always has space: beats requested and not arrived, plus beats waiting, never
  // exceed the buffer.
  localparam int unsigned OutWidth = $clog2(3 * ReturnBeats + 1);
  logic [OutWidth-1:0] f_coming_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) f_coming_q <= '0;
    else f_coming_q <= f_coming_q
                       + OutWidth'(access_valid_o && access_ready_i && !access_write_o)
                       - OutWidth'(return_valid_i);
  end
  always_comb begin
    if (rst_ni) begin
      // Only requested beats come back.
      assume (!return_valid_i || f_coming_q != '0);
      assert (!return_valid_i || u_returns.ready_o);
      assert (f_coming_q <= OutWidth'(ReturnBeats));
      assert (f_coming_q + OutWidth'(u_returns.level_q) + OutWidth'(u_credits.left_q)
              == OutWidth'(ReturnBeats));
    end
  end
`endif

endmodule
