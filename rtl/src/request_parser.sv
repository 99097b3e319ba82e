// SPDX-License-Identifier: Apache-2.0
//
// Ethernet, IPv4 and UDP frames to requests: a beat of meta, the beats of the key and those of the
// value. A frame holds one request of memcached's binary protocol, with the datagram header of 8
// bytes in front of it or, as in the paper, without. What is not one whole request for us is
// dropped whole, before any of it went on, and counted; an opcode that is not known goes on without
// key and value, and the table answers it.
//
// With header or without, with the extras of a SET or without, the key begins two bytes into a
// beat; so the beats up to that one are the head, and what follows goes through a window of 16
// bytes, 8 a cycle. The window empties while the next head comes in, so a frame takes a cycle for
// each of its beats and one for the checks, and no more where a key and a value end in the midst of
// a beat: always less than on the wire, where 24 bytes stand between two frames.

module request_parser
  import ht_pkg::*;
(
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [31:0] ip_i,           // ours
  input  logic [15:0] port_i,
  input  logic        has_header_i,   // of 8 bytes, in front of each request
  input  logic [31:0] now_i,

  input  logic        frame_valid_i,
  output logic        frame_ready_o,
  input  logic [63:0] frame_data_i,
  input  logic        frame_last_i,
  input  logic [15:0] frame_bytes_i,
  input  logic        frame_sound_i,

  output logic        meta_valid_o,
  input  logic        meta_ready_i,
  output request_t    meta_o,
  output logic        client_valid_o,  // with the request, to whoever writes its answer
  input  logic        client_ready_i,
  output client_t     client_o,
  output logic        key_valid_o,
  input  logic        key_ready_i,
  output logic [63:0] key_data_o,
  output logic [7:0]  key_keep_o,
  output logic        key_last_o,
  output logic        val_valid_o,
  input  logic        val_ready_i,
  output logic [63:0] val_data_o,
  output logic [7:0]  val_keep_o,
  output logic        val_last_o,

  output logic        other_o,        // dropped: not for us
  output logic        unsound_o,      // dropped: a checksum is wrong
  output logic        malformed_o     // dropped: lengths that contradict each other
);

  localparam logic [31:0] LongestRelative = 32'd2_592_000;  // 30 days, in seconds
  localparam int unsigned HeadWords = 44;

  typedef enum logic [1:0] {StHead, StCheck, StBody, StSkip} state_e;
  state_e state_q;

  // The head, in words of two bytes, the first on the wire on top.
  logic [15:0] head_q [HeadWords];
  logic [15:0] word   [16];   // of the request
  logic [3:0]  beat_q, last_head;
  logic        is_ended_q;    // the frame's last beat was taken
  logic        is_short_q;    // and it was no whole head
  logic        has_type_q;    // but long enough to say what it is
  logic [15:0] bytes_q;
  logic        is_sound_q, is_extended;
  logic [15:0] item_left_q, value_left_q, feed_left_q;

  for (genvar i = 0; i < 16; i++) begin : gen_word
    assign word[i] = has_header_i ? head_q[25+i] : head_q[21+i];
  end

  // The extras' length is in the head before its end is to be known.
  assign is_extended = word[2][15:8] == 8'd8;
  assign last_head   = 4'd8 + 4'(has_header_i) + 4'(is_extended);

  // Checks.
  logic [7:0]  opcode, extras_bytes;
  logic [15:0] key_bytes, udp_bytes;
  logic [31:0] body_bytes, rest_bytes, expiry;
  logic is_get, is_set, is_delete, is_plain, is_known, is_other, fits, is_fine;

  assign opcode       = word[0][7:0];
  assign key_bytes    = word[1];
  assign extras_bytes = word[2][15:8];
  assign body_bytes   = {word[4], word[5]};
  assign udp_bytes    = head_q[19];
  assign rest_bytes   = body_bytes - 32'(extras_bytes) - 32'(key_bytes);
  assign is_get       = opcode == OpGet || opcode == OpGetQ || opcode == OpGetK
                        || opcode == OpGetKQ;
  assign is_set       = opcode == OpSet || opcode == OpSetQ;
  assign is_delete    = opcode == OpDelete || opcode == OpDeleteQ;
  assign is_plain     = opcode == OpNoop || opcode == OpVersion;
  assign is_known     = is_get || is_set || is_delete || is_plain;

  assign is_other = (has_type_q && head_q[6] != 16'h0800) || (!is_short_q && (
      head_q[7][15:8] != 8'h45 || (head_q[10] & 16'hbfff) != '0 || head_q[11][7:0] != 8'd17
      || {head_q[15], head_q[16]} != ip_i || head_q[18] != port_i));
  assign fits = 32'(udp_bytes) == 32'd32 + (has_header_i ? 32'd8 : '0) + body_bytes
      && body_bytes[31:16] == '0 && head_q[8] == udp_bytes + 16'd20
      && 17'(bytes_q) >= 17'(head_q[8]) + 17'd14
      && 32'(extras_bytes) + 32'(key_bytes) <= body_bytes;
  always_comb begin
    is_fine = !is_short_q && fits && word[0][15:8] == 8'h80
              && (!has_header_i || (head_q[22] == '0 && head_q[23] == 16'd1));
    if (is_set) is_fine = is_fine && is_extended;
    else if (is_known) is_fine = is_fine && extras_bytes == '0 && rest_bytes == '0;
    if (is_plain) is_fine = is_fine && key_bytes == '0;
  end

  logic is_dropped, is_going, go;
  assign is_dropped  = is_other || !is_sound_q || !is_fine;
  assign other_o     = state_q == StCheck && is_other;
  assign unsound_o   = state_q == StCheck && !is_other && !is_short_q && !is_sound_q;
  assign malformed_o = state_q == StCheck && !is_other && (is_short_q || is_sound_q) && !is_fine;
  assign is_going    = state_q == StCheck && !is_dropped;
  // The request before it has left the window.
  assign client_valid_o = is_going && item_left_q == '0 && (!meta_valid_o || meta_ready_i);
  assign go             = client_valid_o && client_ready_i;

  assign client_o = '{mac: {head_q[3], head_q[4], head_q[5]}, ip: {head_q[13], head_q[14]},
                      port: head_q[17], own_mac: {head_q[0], head_q[1], head_q[2]},
                      frame_id: head_q[21], opaque: {word[6], word[7]}};

  always_comb begin
    expiry = {word[14], word[15]};
    if (expiry != '0 && expiry <= LongestRelative) expiry = now_i + expiry;
  end

  always_ff @(posedge clk_i) begin
    if (go) begin
      meta_o <= '{id: '0, opcode: opcode, klen: !is_known ? '0
                  : key_bytes > 16'd255 ? 8'd255 : key_bytes[7:0],
                  vlen: is_set ? rest_bytes[23:0] : '0, flags: is_set ? {word[12], word[13]} : '0,
                  expiry: is_set ? expiry : '0};
    end
  end

  // Items: the key, then the value.
  logic [127:0] window_q, shifted;
  logic [47:0]  rest_q;   // of the head's last beat
  logic [4:0]   count_q, left_in_window;
  logic [15:0]  items_bytes;
  logic         is_value_q, is_out_valid, is_out_ready, is_out, is_last, take;
  logic [3:0]   wanted;

  // What is not known goes on without key and value.
  assign items_bytes  = is_known ? body_bytes[15:0] - 16'(extras_bytes) : '0;
  assign wanted       = item_left_q >= 16'd8 ? 4'd8 : item_left_q[3:0];
  assign is_last      = item_left_q <= 16'd8;
  assign is_out_valid = item_left_q != '0 && count_q >= 5'(wanted);
  assign is_out_ready = is_value_q ? val_ready_i : key_ready_i;
  assign is_out       = is_out_valid && is_out_ready;

  assign key_valid_o = is_out_valid && !is_value_q;
  assign val_valid_o = is_out_valid && is_value_q;
  // Zeros behind an item's end: what lies there may still change while a beat waits.
  for (genvar i = 0; i < 8; i++) begin : gen_byte
    assign key_data_o[8*i+:8] = key_keep_o[i] ? window_q[8*i+:8] : '0;
  end
  assign val_data_o  = key_data_o;
  assign key_keep_o  = ~(8'hff << wanted);
  assign val_keep_o  = key_keep_o;
  assign key_last_o  = is_last;
  assign val_last_o  = is_last;

  assign left_in_window = count_q - (is_out ? 5'(wanted) : '0);
  assign shifted        = is_out ? window_q >> {wanted, 3'b0} : window_q;

  always_comb begin
    unique case (state_q)
      StHead:  frame_ready_o = 1'b1;
      StBody:  frame_ready_o = left_in_window <= 5'd8;
      StSkip:  frame_ready_o = 1'b1;
      default: frame_ready_o = 1'b0;
    endcase
  end
  assign take = frame_valid_i && frame_ready_o;

  always_ff @(posedge clk_i) begin
    if (take && state_q == StHead) begin
      for (int unsigned i = 0; i < 4; i++) begin
        head_q[{beat_q, 2'(i)}] <= {frame_data_i[16*i+:8], frame_data_i[16*i+8+:8]};
      end
      rest_q     <= frame_data_i[63:16];
      bytes_q    <= frame_bytes_i;
      is_sound_q <= frame_sound_i;
    end
    if (go) window_q <= {80'b0, rest_q};
    else if (take && state_q == StBody) begin
      window_q <= shifted | (128'(frame_data_i) << {left_in_window, 3'b0});
    end else window_q <= shifted;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q      <= StHead;
      beat_q       <= '0;
      is_ended_q   <= 1'b0;
      is_short_q   <= 1'b0;
      has_type_q   <= 1'b0;
      meta_valid_o <= 1'b0;
      count_q      <= '0;
      item_left_q  <= '0;
      value_left_q <= '0;
      feed_left_q  <= '0;
      is_value_q   <= 1'b0;
    end else begin
      meta_valid_o <= go || (meta_valid_o && !meta_ready_i);
      if (take) is_ended_q <= frame_last_i;
      unique case (state_q)
        StHead: begin
          if (take) begin
            beat_q <= beat_q + 1'b1;
            if (frame_last_i || (beat_q >= 4'd8 && beat_q == last_head)) begin
              state_q    <= StCheck;
              is_short_q <= beat_q < 4'd8 || beat_q != last_head;
              has_type_q <= beat_q != '0;
              beat_q     <= '0;
            end
          end
        end
        StCheck: begin
          if (is_dropped) state_q <= is_ended_q ? StHead : StSkip;
          else if (go) begin
            state_q <= is_ended_q ? StHead : items_bytes > 16'd6 ? StBody : StSkip;
          end
        end
        StBody: begin
          if (take) begin
            feed_left_q <= feed_left_q - 16'd8;
            if (frame_last_i) state_q <= StHead;
            else if (feed_left_q <= 16'd8) state_q <= StSkip;
          end
        end
        default: if (take && frame_last_i) state_q <= StHead;
      endcase
      if (go) begin
        count_q      <= 5'd6;
        is_value_q   <= key_bytes == '0;
        item_left_q  <= key_bytes != '0 && is_known ? key_bytes : items_bytes;
        value_left_q <= is_set && key_bytes != '0 ? rest_bytes[15:0] : '0;
        feed_left_q  <= items_bytes - 16'd6;
      end else begin
        count_q <= left_in_window + (take && state_q == StBody ? 5'd8 : '0);
        if (is_out) begin
          item_left_q <= item_left_q - 16'(wanted);
          if (is_last) begin
            is_value_q   <= 1'b1;
            item_left_q  <= value_left_q;
            value_left_q <= '0;
          end
        end
      end
    end
  end

endmodule
